// shardplan-validate as a user meets it, on the host: real processes, real faults.
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/tools/run_program.h"
#include "tests/tools/validate/cases.h"

namespace shardplan {
namespace {

using Words = std::vector<std::string>;
using Clock = std::chrono::steady_clock;

const std::string kProgram = "shardplan-validate";

// Processes of the workers of any batch of this build.
std::vector<int> worker_processes() {
  std::vector<int> found;
  const std::string start = built_program(kProgram) + '\0' + "worker";
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    const std::string line((std::istreambuf_iterator<char>(file)), {});
    if (line.starts_with(start)) {
      found.push_back(std::stoi(name));
    }
  }
  return found;
}

// The kernel ends orphans at once, but not within the same instant.
bool no_worker_is_left() {
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(5);
  while (!worker_processes().empty() && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return worker_processes().empty();
}

class Batch {
 public:
  explicit Batch(const std::string& lines) { write_file(cases(), lines); }
  std::string cases() const { return folder_.path() + "/cases.jsonl"; }
  std::string journal() const { return folder_.path() + "/journal.jsonl"; }

  StartedProgram start(const Words& more, const Words& variables = {}) const {
    Words words = {"validate", cases(), "--backend", "host", "--steps", "1"};
    for (const auto& [name, value] :
         {std::pair("--warmup", "1"), std::pair("--timeout", "5"), std::pair("--format", "json")}) {
      if (std::ranges::find(more, name) == more.end()) {
        words.insert(words.end(), {name, value});
      }
    }
    words.insert(words.end(), more.begin(), more.end());
    return StartedProgram(built_program(kProgram), words, variables);
  }
  ProgramRun run(const Words& more = {}, const Words& variables = {}) const {
    return start(more, variables).wait();
  }

 private:
  TemporaryDirectory folder_;
};

std::vector<JsonValue> results_of(const std::string& out) {
  std::vector<JsonValue> results;
  for (std::size_t begin = 0; begin < out.size();) {
    const std::size_t end = std::min(out.find('\n', begin), out.size());
    results.push_back(parse_json(out.substr(begin, end - begin), "results"));
    begin = end + 1;
  }
  return results;
}

std::string word(const JsonValue& result, const Words& path) {
  return member(result, path).string;
}

std::int64_t integer(const JsonValue& result, const Words& path) {
  const JsonValue& value = member(result, path);
  return value.kind == JsonKind::kInteger ? value.integer : -1;
}

std::string status(const JsonValue& result) {
  return word(result, {"measured", "status"});
}

// Bytes of the largest rank's arenas.
std::int64_t arenas_of(const SmallCase& small) {
  std::int64_t bytes = 0;
  const JsonValue result = results_of(Batch(case_line(small)).run().out).at(0);
  for (const JsonValue& rank : member(result, {"measured", "ranks"}).items) {
    bytes = std::max(bytes, integer(rank, {"peak_allocated"}));
  }
  return bytes;
}

const SmallCase kFour = {
    .id = "four", .gpus = 4, .plan = R"("tp":2,"pp":2,"schedule":"1f1b","sequence_parallel":true)"};

}  // namespace

TEST_CASE(
    "processes compute losses and gradient norms of the host reference, whatever the layout") {
  const Batch batch(
      case_lines({{.id = "one"},
                  {.id = "tp", .gpus = 2, .plan = R"("tp":2,"sequence_parallel":true)"},
                  {.id = "pp", .gpus = 2, .plan = R"("pp":2,"schedule":"1f1b")"},
                  {.id = "cp", .gpus = 2, .plan = R"("cp":2,"cp_method":"ring")"},
                  {.id = "zero3", .gpus = 2, .plan = R"("dp":2,"zero":3)"},
                  {.id = "ep",
                   .gpus = 2,
                   .plan = R"("dp":2,"ep":2,"moe_buffer_factor":2)",
                   .has_experts = true},
                  kFour}));
  const ProgramRun run = batch.run({"--check-against-host"});
  CHECK(run.exit_code == 0);
  CHECK(run.err == "");
  const std::vector<JsonValue> results = results_of(run.out);
  REQUIRE(results.size() == 7);
  for (const JsonValue& result : results) {
    CAPTURE(word(result, {"id"}));
    CHECK(status(result) == "ok");
    CHECK(member(result, {"measured", "loss_error"}).real <= 1e-10);
    CHECK(member(result, {"measured", "losses", "0"}).real > 1);
    CHECK(member(result, {"measured", "gradient_norm_error"}).real <= 1e-10);
    CHECK(member(result, {"measured", "gradient_norms", "0"}).real > 0);
    CHECK(member(result, {"measured", "tokens_per_s_per_gpu"}).real > 0);
    // The arenas hold what the estimate says, and nothing beyond rounding each up to 2 MiB.
    const std::int64_t arenas = integer(result, {"measured", "ranks", "0", "peak_allocated"});
    const std::int64_t predicted = integer(result, {"predicted", "stages", "0", "peak_allocated"});
    CHECK(arenas >= predicted);
    CHECK(arenas - predicted < 2 * (2 << 20));
  }
  CHECK(no_worker_is_left());
}

TEST_CASE("every way to fail is a record with rank and phase, and the next plan runs") {
  struct Failing {
    std::string fault;
    std::string status;
    std::int64_t rank;
    std::string phase;
    std::int64_t operation;  // -1: none
  };
  const std::vector<Failing> failing = {
      {"kill rank=2 step=1 operation=20", "crash", 2, "steps", 20},
      {"segv rank=1 operation=5", "crash", 1, "steps", 5},
      {"exit rank=3 phase=load", "crash", 3, "load", -1},
      {"throw rank=0 operation=3", "crash", 0, "steps", 3},
      {"garbage rank=0 operation=10", "crash", 0, "steps", 10},
      {"stop rank=3 step=1 operation=20", "timeout", 3, "steps", 20},
      {"hang rank=1 operation=9", "timeout", 1, "steps", 9},
      {"hang rank=2 phase=communicators", "timeout", 2, "communicators", -1},
      {"stop rank=1 phase=commit", "timeout", 1, "commit", -1},
  };
  std::string faults;
  std::vector<SmallCase> cases;
  for (std::size_t i = 0; i < failing.size(); ++i) {
    faults += failing[i].fault + " run=" + std::to_string(2 * i + 1) + ";";
    cases.insert(cases.end(), 2, kFour);
  }
  const Batch batch(case_lines(cases));
  const ProgramRun run = batch.run({}, {"SHARDPLAN_FAULT=" + faults});
  CHECK(run.exit_code == 5);
  const std::vector<JsonValue> results = results_of(run.out);
  REQUIRE(results.size() == cases.size());
  for (std::size_t i = 0; i < failing.size(); ++i) {
    const JsonValue& failed = results[2 * i];
    CAPTURE(failing[i].fault);
    CHECK(status(failed) == failing[i].status);
    CHECK(integer(failed, {"measured", "failed", "rank"}) == failing[i].rank);
    CHECK(word(failed, {"measured", "failed", "phase"}) == failing[i].phase);
    CHECK(integer(failed, {"measured", "failed", "operation"}) == failing[i].operation);
    CHECK(member(failed, {"measured", "positions"}).items.size() == 4);
    CHECK(status(results[2 * i + 1]) == "ok");
  }
  CHECK(integer(results[0], {"measured", "failed", "signal"}) == SIGKILL);
  CHECK(integer(results[2], {"measured", "failed", "signal"}) == SIGSEGV);
  CHECK(word(results[0], {"measured", "failed", "operation_name"}) == "gemm forward.head");
  CHECK(no_worker_is_left());
}

TEST_CASE("twenty plans run out of memory in a row, and the next one runs in the same processes") {
  const std::int64_t limit = arenas_of(kFour);
  const std::string limit_text = std::to_string(limit);
  std::vector<SmallCase> cases(20, kFour);
  for (SmallCase& small : cases) { small.micro_batch = 128; }
  cases.push_back(kFour);
  const Batch batch(case_lines(cases));
  const ProgramRun run = batch.run({"--memory-limit", limit_text, "--force"});
  CHECK(run.exit_code == 0);
  const std::vector<JsonValue> results = results_of(run.out);
  REQUIRE(results.size() == 21);
  for (std::size_t i = 0; i < 20; ++i) {
    CHECK(status(results[i]) == "oom");
    CHECK(word(results[i], {"measured", "failed", "place"}) == "commit");
    CHECK(integer(results[i], {"measured", "failed", "free"}) == limit);
    CHECK(integer(results[i], {"measured", "failed", "requested"}) > limit);
    CHECK(integer(results[i], {"measured", "failed", "rank"}) >= 0);
    CHECK(integer(results[i], {"measured", "restarted_workers"}) == 0);
  }
  CHECK(status(results[20]) == "ok");
  const ProgramRun predicted = batch.run({"--memory-limit", limit_text, "--fail-on-oom"});
  CHECK(predicted.exit_code == 1);
  CHECK(word(results_of(predicted.out)[0], {"measured", "failed", "place"}) == "predicted");
  CHECK(no_worker_is_left());
}

// A sanitizer's shadow alone needs more.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("a host without memory for the arenas claims nothing of what is free") {
  const Batch batch(case_line({.micro_batch = 64, .sequence_length = 1 << 16}));
  for (const std::string limit : {"", " --memory-limit 1TiB"}) {
    const std::string command = "ulimit -v 4000000; exec " + built_program(kProgram) +
                                " validate " + batch.cases() +
                                " --backend host --force --format json" + limit;
    const ProgramRun run = StartedProgram("/bin/sh", {"-c", command}, {}).wait();
    CAPTURE(run.err);
    const JsonValue result = results_of(run.out).at(0);
    CHECK(status(result) == "oom");
    CHECK(integer(result, {"measured", "failed", "requested"}) > 0);
    CHECK(member(result, {"measured", "failed", "free"}).kind == JsonKind::kNull);
  }
}
#endif

TEST_CASE("a killed supervisor leaves no process, and --resume repeats and loses nothing") {
  std::vector<SmallCase> cases;
  for (int i = 0; i < 12; ++i) {
    cases.push_back(kFour);
    cases.back().id = "plan " + std::to_string(i);
  }
  const Batch batch(case_lines(cases));
  const auto num_records = [&] {
    if (!std::filesystem::exists(batch.journal())) {
      return std::ptrdiff_t{0};
    }
    const std::string text = read_file(batch.journal());
    return std::ranges::count(text, '\n');
  };
  std::string finished;
  // The fourth run stands still in a stopped process: it, too, is gone with the supervisor.
  for (const std::ptrdiff_t kill_at : {1, 3, 5}) {
    Words words = {"--journal", batch.journal()};
    if (!finished.empty()) {
      words.push_back("--resume");
    }
    const auto started =
        batch.start(words, {kill_at == 3 ? "SHARDPLAN_FAULT=stop run=3" : "SHARDPLAN_FAULT="});
    const auto deadline = Clock::now() + std::chrono::seconds(30);
    while (num_records() < kill_at && Clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    kill(started.pid(), SIGKILL);
    CHECK(no_worker_is_left());
    const std::string now = read_file(batch.journal());
    CHECK(now.starts_with(finished));
    finished = now.substr(0, now.rfind('\n') + 1);
  }
  std::ofstream(batch.journal(), std::ios::app) << R"({"key":"0123)";  // cut off by a full disk
  const ProgramRun rest = batch.run({"--journal", batch.journal(), "--resume"});
  CHECK(rest.exit_code == 0);
  CHECK(rest.err.find("the last record was cut off") != std::string::npos);
  const std::string journal = read_file(batch.journal());
  CHECK(journal.starts_with(finished));
  CHECK(std::ranges::count(journal, '\n') == 12);
  const std::vector<JsonValue> results = results_of(rest.out);
  REQUIRE(results.size() == 12);
  for (std::size_t i = 0; i < 12; ++i) {
    CHECK(word(results[i], {"id"}) == "plan " + std::to_string(i));
    CHECK(status(results[i]) == "ok");
  }
  CHECK(batch.run({"--journal", batch.journal(), "--resume"}).out == rest.out);
  CHECK(batch.run({"--journal", batch.journal()}).exit_code == 2);  // not by accident
}

TEST_CASE("--resume takes no result of another model, cluster or data folder") {
  const TemporaryDirectory folder;
  const std::string model = folder.path() + "/config.json";
  const std::string cluster = folder.path() + "/cluster.json";
  const std::string data = folder.path() + "/data";
  for (const char* part : {"/gpus", "/frameworks", "/time"}) {
    std::filesystem::create_directories(data + part);
    std::filesystem::copy(SHARDPLAN_SOURCE_DIR + std::string("/data") + part, data + part);
  }
  const std::string gpu = data + "/gpus/H200-SXM-141GB.json";
  const auto replace = [](const std::string& path, const std::string& old, const std::string& by) {
    std::string text = read_file(path);
    REQUIRE(text.find(old) != std::string::npos);
    write_file(path, text.replace(text.find(old), old.size(), by));
  };
  write_file(model, R"({"model_type":"llama","hidden_size":32,"intermediate_size":64,)"
                    R"("num_hidden_layers":2,"num_attention_heads":4,"vocab_size":96})");
  write_file(cluster, R"({"gpu":"h200","gpus_per_node":1,"nodes":1,"memory_limit_gib":1})");
  const Batch batch(R"({"schema":1,"id":"one","framework":"native","model":{"file":")" + model +
                    R"("},"cluster":{"file":")" + cluster +
                    R"("},"training":{"sequence_length":16,"num_microbatches":1},"plan":{}})");
  const auto result = [&](const Words& more) {
    Words words = {"--journal", batch.journal(), "--data", data};
    words.insert(words.end(), more.begin(), more.end());
    return batch.run(words).out;
  };
  const auto num_records = [&] { return std::ranges::count(read_file(batch.journal()), '\n'); };
  std::string last = result({});
  CHECK(status(results_of(last).at(0)) == "ok");
  CHECK(result({"--resume"}) == last);
  CHECK(num_records() == 1);
  struct Change {
    std::string path;
    std::string old;
    std::string by;
  };
  std::ptrdiff_t expected = 1;
  for (const Change& change :
       {Change{model, R"("num_hidden_layers":2)", R"("num_hidden_layers":3)"},
        Change{cluster, R"("memory_limit_gib":1)", R"("memory_limit_gib":2)"},
        Change{gpu, R"("num_sms": 132)", R"("num_sms": 131)"}}) {
    CAPTURE(change.path);
    replace(change.path, change.old, change.by);
    const std::string now = result({"--resume"});
    CHECK(num_records() == ++expected);
    CHECK(result({"--resume"}) == now);
    last = now;
  }
}

TEST_CASE("a file that is no journal is refused in one line and stays as it is") {
  const Batch batch(case_lines({kFour}));
  for (const std::string text : {"notes", "notes\n", "notes\nmore", "{\"key\":\"12\n", "\n"}) {
    write_file(batch.journal(), text);
    for (const Words& words :
         {Words{"--journal", batch.journal()}, Words{"--journal", batch.journal(), "--resume"}}) {
      const ProgramRun run = batch.run(words);
      INFO(text << ": " << run.err);
      CHECK(run.exit_code == 2);
      CHECK(std::ranges::count(run.err, '\n') == 1);
      CHECK(run.err.find("journal.jsonl:") != std::string::npos);
      CHECK(read_file(batch.journal()) == text);
    }
  }
}

TEST_CASE("a damaged record of a journal is named by its line, and nothing runs") {
  const Batch batch(case_lines({kFour, kFour, kFour}));
  REQUIRE(batch.run({"--journal", batch.journal()}).exit_code == 0);
  const std::string whole = read_file(batch.journal());
  const std::size_t second = whole.find('\n') + 1;
  const std::size_t begin = whole.find("\"result\":", second) + 9;
  const std::size_t end = whole.find('\n', second) - 1;
  for (const std::string result :
       {"garbage", "{}", "[]", "", "{\"measured\":{\"status\":\"fine\"}}",
        "{\"predicted\":{\"status\":\"ok\"}}"}) {
    const std::string text = std::string(whole).replace(begin, end - begin, result);
    write_file(batch.journal(), text);
    for (const char* format : {"json", "csv", "table"}) {
      const ProgramRun run =
          batch.run({"--journal", batch.journal(), "--resume", "--format", format});
      INFO(result << ": " << run.err);
      CHECK(run.exit_code == 2);
      CHECK(run.out.empty());
      CHECK(run.err.ends_with(
          "journal.jsonl:2: found no record of validate, expected a journal that it wrote\n"));
      CHECK(std::ranges::count(run.err, '\n') == 1);
      CHECK(read_file(batch.journal()) == text);
    }
  }
}

TEST_CASE("SIGTERM ends a batch with its processes, SIGINT after the run that goes on") {
  const Batch batch(case_lines({kFour, kFour, kFour}));
  for (const int signal : {SIGTERM, SIGINT}) {
    auto started =
        batch.start({"--timeout", "30"},
                    {signal == SIGTERM ? "SHARDPLAN_FAULT=stop run=2" : "SHARDPLAN_FAULT="});
    const auto deadline = Clock::now() + std::chrono::seconds(30);
    while (started.out_so_far().find('\n') == std::string::npos && Clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    kill(started.pid(), signal);
    const ProgramRun run = started.wait();
    // All three may be over before the signal comes.
    CHECK((run.exit_code == 128 + signal || (signal == SIGINT && run.exit_code == 0)));
    CHECK(no_worker_is_left());
  }
}

TEST_CASE(
    "one simulated rank has the arenas that it has among all, and claims neither loss nor speed") {
  const Batch batch(case_lines({kFour}));
  const JsonValue real = results_of(batch.run().out).at(0);
  for (int rank = 0; rank < 4; ++rank) {
    const JsonValue alone =
        results_of(batch.run({"--simulate-rank", std::to_string(rank) + "/4"}).out).at(0);
    const std::string index = std::to_string(rank);
    CHECK(status(alone) == "ok");
    CHECK(integer(alone, {"measured", "ranks", "0", "rank"}) == rank);
    for (const char* arena : {"persistent_arena", "dynamic_arena"}) {
      CHECK(integer(alone, {"measured", "ranks", "0", arena}) ==
            integer(real, {"measured", "ranks", index, arena}));
    }
    CHECK(member(alone, {"measured", "losses"}).kind == JsonKind::kNull);
    CHECK(member(alone, {"measured", "tokens_per_s_per_gpu"}).kind == JsonKind::kNull);
    CHECK(member(alone, {"measured", "compute_times_s"}).items.size() == 1);
  }
  CHECK(batch.run({"--simulate-rank", "4/4"}).exit_code == 2);
  CHECK(batch.run({"--simulate-rank", "0/8"}).exit_code == 1);  // not the plan's world
}

TEST_CASE("the host backend looks for the largest size under a limit only") {
  const ProgramRun run = Batch(case_line({})).run({"--find-max", "layers"});
  CHECK(run.exit_code == 2);
  CHECK(run.err.find("--find-max: found no --memory-limit") != std::string::npos);
}

TEST_CASE("the size that --find-max names runs, and the next runs out of memory") {
  const SmallCase small = {
      .id = "pp", .gpus = 2, .plan = R"("pp":2,"schedule":"1f1b")", .micro_batch = 8};
  const Batch batch(case_line(small));
  const std::int64_t limit = arenas_of(small);
  struct Axis {
    std::string name;
    Words path;
    std::int64_t step;
  };
  for (const Axis& axis : {Axis{"micro_batch", {"training", "micro_batch"}, 1},
                           Axis{"sequence_length", {"training", "sequence_length"}, 1},
                           Axis{"layers", {"model", "num_hidden_layers"}, 2}}) {
    CAPTURE(axis.name);
    const ProgramRun run = batch.run(
        {"--find-max", axis.name, "--memory-limit", std::to_string(limit), "--warmup", "0"});
    CHECK(run.exit_code == 0);
    const JsonValue result = results_of(run.out).at(0);
    const std::int64_t value = integer(result, {"measured", "find_max", "value"});
    CHECK(status(result) == "ok");
    CHECK(value > 1);
    CHECK(integer(result, axis.path) == value);
    CHECK(integer(result, {"measured", "find_max", "next"}) == value + axis.step);
    CHECK(word(result, {"measured", "find_max", "next_status"}) == "oom");
    CHECK(integer(result, {"measured", "ranks", "0", "peak_allocated"}) <= limit);
  }
}

TEST_CASE("an overflow of experts is an outcome with the factor that suffices") {
  SmallCase small = {.id = "ep", .gpus = 2, .plan = {}, .has_experts = true};
  const auto with_factor = [&](const std::string& factor) {
    small.plan = R"("dp":2,"ep":2,"moe_buffer_factor":)" + factor;
    return results_of(Batch(case_line(small)).run().out).at(0);
  };
  const JsonValue tight = with_factor("1");
  CHECK(status(tight) == "moe_overflow");
  const double needed = member(tight, {"measured", "failed", "needed_factor"}).real;
  CHECK(needed > 1);
  CHECK(status(with_factor("2")) == "ok");
}

TEST_CASE("of several groups of experts that overflow the one that needs most says the factor") {
  for (const std::string plan : {R"("dp":4,"ep":2)", R"("pp":2,"dp":2,"ep":2,"schedule":"1f1b")"}) {
    CAPTURE(plan);
    const auto with_factor = [&](double factor) {
      const SmallCase small = {.id = "ep",
                               .gpus = 4,
                               .plan = plan + R"(,"moe_buffer_factor":)" + std::to_string(factor),
                               .has_experts = true};
      return results_of(Batch(case_line(small)).run({"--warmup", "0"}).out).at(0);
    };
    const JsonValue tight = with_factor(1);
    CHECK(status(tight) == "moe_overflow");
    const double needed = member(tight, {"measured", "failed", "needed_factor"}).real;
    CHECK(status(with_factor(needed)) == "ok");
    constexpr double kRow = 1.0 / 32;  // of a rank that gets 16 tokens twice on average
    CHECK(status(with_factor(needed - kRow)) == "moe_overflow");
    // Rows are counted for a group and a step: neither a rank nor an operation is to blame.
    CHECK(integer(tight, {"measured", "failed", "step"}) == 0);
    CHECK(integer(tight, {"measured", "failed", "rank"}) == -1);
    CHECK(integer(tight, {"measured", "failed", "operation"}) == -1);
    CHECK(word(tight, {"measured", "reason"}).find("one of the ranks") != std::string::npos);
    CHECK(integer(tight, {"measured", "restarted_workers"}) == 0);
  }
}

TEST_CASE("a stage without experts hears that those of another overflow") {
  SmallCase small = {.id = "stages", .gpus = 4, .plan = {}};
  const auto with_factor = [&](const std::string& factor) {
    small.plan = R"("pp":2,"dp":2,"ep":2,"schedule":"1f1b","moe_buffer_factor":)" + factor;
    std::string line = case_line(small);
    const std::string dense = R"("model_type":"llama")";
    line.replace(line.find(dense), dense.size(),
                 R"("model_type":"llama4_text","num_local_experts":4,"num_experts_per_tok":2,)"
                 R"("interleave_moe_layer_step":2,"intermediate_size_mlp":64)");
    return results_of(Batch(line).run().out).at(0);
  };
  const JsonValue tight = with_factor("1");
  CHECK(status(tight) == "moe_overflow");
  CHECK(word(tight, {"measured", "reason"}).find("one of the ranks 2, 3 ") != std::string::npos);
  CHECK(status(with_factor("2")) == "ok");
}

TEST_CASE("what cannot be run is said, and the rest of the batch goes on") {
  const Batch batch(case_line({.id = "other", .framework = "megatron"}) + "{\"id\":\n" +
                    case_line({.id = "bad", .gpus = 3, .plan = R"("tp":2)"}) +
                    case_line({.id = "good"}));
  const ProgramRun run = batch.run();
  CHECK(run.exit_code == 2);
  const std::vector<JsonValue> results = results_of(run.out);
  REQUIRE(results.size() == 4);
  CHECK(status(results[0]) == "invalid");
  CHECK(word(results[1], {"predicted", "status"}) == "error");
  CHECK(member(results[1], {"measured"}).kind == JsonKind::kNull);
  CHECK(status(results[2]) == "invalid");
  CHECK(status(results[3]) == "ok");
}

}  // namespace shardplan
