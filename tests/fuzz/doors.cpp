#include "tests/fuzz/doors.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "data/clusters/machine.h"
#include "data/read/case_line.h"
#include "data/read/input_error.h"
#include "tools/commands/command.h"
#include "tools/commands/help.h"
#include "tools/commands/prediction.h"
#include "tools/from/file.h"
#include "tools/from/oom_log.h"
#include "tools/from/shell/read_shell.h"
#include "tools/options/case_file.h"
#include "tools/options/options.h"
#include "tools/options/question.h"
#include "tools/options/search_question.h"
#include "tools/report/output.h"
#include "tools/validate/journal.h"
#include "validator/supervise/launch_environment.h"
#include "validator/supervise/outcome.h"
#include "validator/supervise/rendezvous_request.h"
#include "validator/supervise/run_request.h"

namespace shardplan {
namespace {

const Library& library() {
  static const Library all;
  return all;
}

const ClusterSpec& one_node() {
  static const ClusterSpec cluster = library().cluster("1x8-h200");
  return cluster;
}

void write(const std::string& path, const std::string& bytes) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size() ||
      std::fclose(file) != 0) {
    std::perror(path.c_str());
    std::abort();
  }
}

// What is cheap to estimate: a fuzzer asks thousands of times a minute.
bool is_small(const Job& job, const Plan& plan) {
  return job.cluster.world_size() <= 64 && job.model.num_layers() <= 8 &&
         job.global_batch <= 64 * plan.micro_batch && plan.pp * plan.vpp <= 16;
}

void open_case(const std::string& bytes) {
  const Case question = read_case(bytes, "cases.jsonl:1", library());
  const bool is_known = question.supported && question.unsupported.empty();
  if (is_known && !why_invalid(question.job, question.plan) &&
      is_small(question.job, question.plan)) {
    predict(question.job, question.plan, {});
  }
}

void open_config(const std::string& bytes) {
  const JsonValue value = parse_json(bytes, "config.json");
  read_model_config(value, "model", "config.json", UnknownKeys::kWarn);
  read_model_config(value, "model", "config.json", UnknownKeys::kRefuse);
}

void open_cluster(const std::string& bytes) {
  read_cluster(parse_json(bytes, "cluster.json"), "cluster.json", library());
}

void open_gpu(const std::string& bytes) {
  read_gpu(parse_json(bytes, "gpu.json"), "gpu.json");
}

void open_framework(const std::string& bytes) {
  std::filesystem::create_directories("data/frameworks");
  write("data/frameworks/any.json", bytes);
  const Library own("data");
  own.profile("any");
  own.framework("any");
}

// A run's file from its text to its plan, as --from takes it.
void open_run(const std::string& path, const std::string& bytes) {
  write(path, bytes);
  std::vector<std::string> notes;
  RunSettings settings = settings_from_file(
      path, notes, {.cluster_gpus = one_node().world_size(), .node_gpus = one_node().gpus_per_node},
      library());
  if (settings.format == RunFormat::kDeepspeed || settings.format == RunFormat::kTransformers ||
      !settings.model_name.name.empty()) {
    settings.model = "llama3-8b";
  }
  const RunReading run = read_run(settings, one_node(), library());
  if (run.has_profile && run.unsupported.empty()) {
    why_invalid(run.job, run.plan);  // a run that stands is estimated as a case is
  }
}

// Without the tables of settings, which take most of the time.
void open_shell(const std::string& bytes) {
  read_shell(bytes, "run.sh", {.values = {{"1", "8b"}, {"SLURM_NNODES", "2"}}, .choices = {}});
}
void open_script(const std::string& bytes) {
  open_run("run.sh", bytes);
}
void open_yaml(const std::string& bytes) {
  open_run("run.yaml", bytes);
}
void open_toml(const std::string& bytes) {
  open_run("run.toml", bytes);
}
void open_json(const std::string& bytes) {
  open_run("run.json", bytes);
}
void open_log(const std::string& bytes) {
  open_run("run.log", bytes);
}

void open_oom_log(const std::string& bytes) {
  write("oom.log", bytes);
  TextFile log("oom.log");
  const OomLog read = read_oom_log(log);
  for (const OomEvent& event : read.events) { event.usable_bytes(); }
}

// One word a line, the command first. Words that may name a file elsewhere are left alone.
void open_flags(const std::string& bytes) {
  Arguments words;
  for (std::size_t start = 0; start < bytes.size();) {
    const std::size_t end = std::min(bytes.find('\n', start), bytes.size());
    words.push_back(bytes.substr(start, end - start));
    start = end + 1;
  }
  if (words.empty() || bytes.find("..") != std::string::npos ||
      bytes.find('/') != std::string::npos) {
    return;
  }
  const Command& command = command_named(words.front());
  const Options options = parse_options(command.name, {words.begin() + 1, words.end()});
  if (command.name == "search") {
    search_question_of(options, library());
  } else if (command.name == "estimate" || command.name == "compare" || command.name == "advise" ||
             command.name == "why-oom") {
    const Question question = question_of(options, library());
    why_invalid(question.job, question.plan);
  }
}

void open_journal(const std::string& bytes) {
  write("journal", bytes);
  ValidateJournal journal("journal", true);
  journal.finished("nothing");
}

// Between rank 0 and the others.
void open_rendezvous(const std::string& bytes) {
  if (const auto request = rendezvous_request_of(bytes)) {
    const std::string text = text_of(*request);
    const auto again = rendezvous_request_of(text);
    if (!again || text_of(*again) != text) {
      throw std::logic_error("a request changes by being written and read: " + text);
    }
  }
}

// Between the supervisor and its workers: what no writer writes is refused by
// std::invalid_argument, what is read can be written and read again.
template <class Read>
void open_text(const std::string& bytes, Read read) {
  std::string text;
  try {
    text = text_of(read(bytes));
  } catch (const std::invalid_argument&) { return; }
  read(text);
}

void open_message(const std::string& bytes) {
  open_text(bytes, request_of);
  open_text(bytes, result_of);
  open_text(bytes, failure_of);
}

// NAME=VALUE, one a line, as launchers set them.
void open_environment(const std::string& bytes) {
  Environment variables;
  for (std::size_t start = 0; start < bytes.size();) {
    const std::size_t end = std::min(bytes.find('\n', start), bytes.size());
    const std::size_t equals = bytes.find('=', start);
    if (equals < end) {
      variables.emplace(bytes.substr(start, equals - start),
                        bytes.substr(equals + 1, end - equals - 1));
    }
    start = end + 1;
  }
  try {
    launch_rank(variables);
  } catch (const LaunchError&) {}
}

// InputError and EnvironmentError have their lines and exit codes.
template <void (*read)(const std::string&)>
void refusing(const std::string& bytes) {
  try {
    read(bytes);
  } catch (const InputError&) {
  } catch (const EnvironmentError&) {}
}

constexpr std::array kDoors = std::to_array<Door>({
    {.name = "case", .open = refusing<open_case>},
    {.name = "config", .open = refusing<open_config>},
    {.name = "cluster", .open = refusing<open_cluster>},
    {.name = "gpu", .open = refusing<open_gpu>},
    {.name = "framework", .open = refusing<open_framework>},
    {.name = "shell", .open = refusing<open_shell>},
    {.name = "script", .open = refusing<open_script>},
    {.name = "yaml", .open = refusing<open_yaml>},
    {.name = "toml", .open = refusing<open_toml>},
    {.name = "json", .open = refusing<open_json>},
    {.name = "log", .open = refusing<open_log>},
    {.name = "oom_log", .open = refusing<open_oom_log>},
    {.name = "flags", .open = refusing<open_flags>},
    {.name = "journal", .open = refusing<open_journal>},
    {.name = "rendezvous", .open = refusing<open_rendezvous>},
    {.name = "message", .open = refusing<open_message>},
    {.name = "environment", .open = refusing<open_environment>},
});

}  // namespace

std::span<const Door> doors() {
  return kDoors;
}

const Door* door_named(std::string_view name) {
  const auto* const found = std::ranges::find(kDoors, name, &Door::name);
  return found == kDoors.end() ? nullptr : found;
}

void enter_temporary_folder() {
  std::string folder = (std::filesystem::temp_directory_path() / "shardplan-fuzz-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    std::perror(folder.c_str());
    std::exit(3);
  }
  std::filesystem::current_path(folder);
}

}  // namespace shardplan
