// shardplan-validate under launchers: processes with the variables that torchrun, srun and mpirun
// set, on what look like two hosts of two.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "data/read/json_reader.h"
#include "tests/tools/run_program.h"
#include "tests/tools/validate/cases.h"
#include "tools/validate/case.h"

namespace shardplan {
namespace {

using Words = std::vector<std::string>;

const std::string kProgram = "shardplan-validate";
const std::string kToken = "SHARDPLAN_TOKEN=0123456789abcdef";

// A port that nobody listens on, right now.
std::string free_port() {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  bind(descriptor, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size);
  close(descriptor);
  return std::to_string(ntohs(address.sin_port));
}

struct Launcher {
  std::string name;
  std::function<Words(int rank, const std::string& port)> variables;  // of four, two on each host
};

std::string number(int value) {
  return std::to_string(value);
}

const std::vector<Launcher>& launchers() {
  static const std::vector<Launcher> all = {
      {"torchrun",
       [](int rank, const std::string& port) {
         return Words{"RANK=" + number(rank),  "LOCAL_RANK=" + number(rank % 2),
                      "WORLD_SIZE=4",          "LOCAL_WORLD_SIZE=2",
                      "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port};
       }},
      {"Slurm",
       [](int rank, const std::string& port) {
         return Words{"SLURM_PROCID=" + number(rank),
                      "SLURM_LOCALID=" + number(rank % 2),
                      "SLURM_NTASKS=4",
                      "SLURM_NTASKS_PER_NODE=2",
                      "SLURM_STEP_ID=0",
                      "SLURM_LAUNCH_NODE_IPADDR=127.0.0.1",
                      "SHARDPLAN_PORT=" + port};
       }},
      {"Open MPI",
       [](int rank, const std::string& port) {
         return Words{"OMPI_COMM_WORLD_RANK=" + number(rank),
                      "OMPI_COMM_WORLD_LOCAL_RANK=" + number(rank % 2),
                      "OMPI_COMM_WORLD_SIZE=4",
                      "OMPI_COMM_WORLD_LOCAL_SIZE=2",
                      "MASTER_ADDR=127.0.0.1",
                      "SHARDPLAN_PORT=" + port};
       }},
      {"MPICH",
       [](int rank, const std::string& port) {
         return Words{"PMI_RANK=" + number(rank),
                      "MPI_LOCALRANKID=" + number(rank % 2),
                      "PMI_SIZE=4",
                      "MPI_LOCALNRANKS=2",
                      "MASTER_ADDR=127.0.0.1",
                      "SHARDPLAN_PORT=" + port};
       }},
  };
  return all;
}

Words words_of(const std::string& cases) {
  return {"validate", cases, "--backend", "host", "--steps",  "1",
          "--warmup", "1",   "--timeout", "5",    "--format", "json"};
}

class Launch {
 public:
  Launch(const std::string& cases, const std::function<Words(int rank)>& variables,
         const Words& more = {}) {
    Words words = words_of(cases);
    words.insert(words.end(), more.begin(), more.end());
    for (int rank = 0; rank < 4; ++rank) {
      processes_.push_back(
          std::make_unique<StartedProgram>(built_program(kProgram), words, variables(rank)));
    }
  }
  void wait_for_lines(std::ptrdiff_t count) {
    for (int i = 0; i < 30'000 && std::ranges::count(process(0).out_so_far(), '\n') < count; ++i) {
      usleep(1000);
    }
  }
  // Until a fault has stopped the worker of an agent, its only child.
  void wait_for_stop(int rank) {
    const std::string agent = number(process(rank).pid());
    const std::string children = "/proc/" + agent + "/task/" + agent + "/children";
    for (int i = 0; i < 30'000; ++i) {
      const std::string child = read_file(children);
      const std::string stat = "/proc/" + child.substr(0, child.find(' ')) + "/stat";
      if (!child.empty() && read_file(stat).find(") T ") != std::string::npos) {
        return;
      }
      usleep(1000);
    }
  }
  StartedProgram& process(int rank) { return *processes_.at(static_cast<std::size_t>(rank)); }

 private:
  std::vector<std::unique_ptr<StartedProgram>> processes_;
};

// Device of every rank, by rank.
std::vector<std::int64_t> rank_map(const JsonValue& result) {
  std::vector<std::int64_t> devices;
  for (const JsonValue& rank : member(result, {"measured", "ranks"}).items) {
    CHECK(member(rank, {"rank"}).integer == std::ssize(devices));
    devices.push_back(member(rank, {"device"}).integer);
  }
  return devices;
}

const SmallCase kFour = {
    .id = "four", .gpus = 4, .plan = R"("tp":2,"pp":2,"schedule":"1f1b","sequence_parallel":true)"};

}  // namespace

TEST_CASE("torchrun, Slurm, Open MPI and MPICH give the same rank map and the same losses") {
  const TemporaryDirectory folder;
  const std::string cases = folder.path() + "/cases.jsonl";
  write_file(cases, case_line(kFour));
  const ProgramRun alone = StartedProgram(built_program(kProgram), words_of(cases), {}).wait();
  const JsonValue expected = parse_json(alone.out, "result");
  CHECK(rank_map(expected) == std::vector<std::int64_t>{0, 1, 2, 3});
  for (const Launcher& launcher : launchers()) {
    CAPTURE(launcher.name);
    const std::string port = free_port();
    Launch launch(cases, [&](int rank) {
      Words variables = launcher.variables(rank, port);
      variables.push_back(kToken);
      return variables;
    });
    const ProgramRun first = launch.process(0).wait();
    CHECK(first.err == "");
    CHECK(first.exit_code == 0);
    for (int rank = 1; rank < 4; ++rank) {
      const ProgramRun other = launch.process(rank).wait();
      CHECK(other.exit_code == 0);
      CHECK(other.out == "");
      CHECK(other.err == "");
    }
    const JsonValue result = parse_json(first.out, "result");
    CHECK(rank_map(result) == std::vector<std::int64_t>{0, 1, 0, 1});
    CHECK(member(result, {"measured", "losses", "0"}).real ==
          member(expected, {"measured", "losses", "0"}).real);
  }
}

TEST_CASE("a process that a launcher lets see one GPU takes that one") {
  const TemporaryDirectory folder;
  const std::string cases = folder.path() + "/cases.jsonl";
  write_file(cases, case_line(kFour));
  const std::string port = free_port();
  Launch launch(cases, [&](int rank) {
    Words variables = launchers()[1].variables(rank, port);
    variables.insert(variables.end(), {kToken, "CUDA_VISIBLE_DEVICES=" + number(rank % 2)});
    return variables;
  });
  const ProgramRun first = launch.process(0).wait();
  CHECK(first.exit_code == 0);
  CHECK(rank_map(parse_json(first.out, "result")) == std::vector<std::int64_t>{0, 0, 0, 0});
}

TEST_CASE(
    "a dead worker behind an agent is a record, and one whose agent died costs its plans only") {
  const TemporaryDirectory folder;
  const std::string cases = folder.path() + "/cases.jsonl";
  const SmallCase two = {.id = "two", .gpus = 2, .plan = R"("tp":2)"};
  write_file(cases, case_lines({kFour, kFour, kFour, two}));
  const std::string port = free_port();
  Launch launch(cases, [&](int rank) {
    Words variables = launchers()[0].variables(rank, port);
    variables.insert(variables.end(),
                     {kToken, "SHARDPLAN_FAULT=kill run=1 rank=3 operation=4; stop run=3 rank=2"});
    return variables;
  });
  launch.wait_for_lines(2);  // the third run stands still until its second rank's agent is killed
  kill(launch.process(2).pid(), SIGKILL);
  const ProgramRun first = launch.process(0).wait();
  CHECK(first.exit_code == 5);
  std::vector<JsonValue> results;
  for (std::size_t begin = 0; begin < first.out.size();) {
    const std::size_t end = first.out.find('\n', begin);
    results.push_back(parse_json(first.out.substr(begin, end - begin), "results"));
    begin = end + 1;
  }
  REQUIRE(results.size() == 4);
  const auto status = [&](std::size_t i) {
    return member(results[i], {"measured", "status"}).string;
  };
  CHECK(status(0) == "crash");
  CHECK(member(results[0], {"measured", "failed", "rank"}).integer == 3);
  CHECK(member(results[0], {"measured", "failed", "signal"}).integer == SIGKILL);
  CHECK(status(1) == "ok");
  CHECK(status(2) == "crash");
  CHECK(member(results[2], {"measured", "failed", "rank"}).integer == 2);
  CHECK(status(3) == "ok");
}

TEST_CASE("a plan that a signal interrupts on any host is no record, and --resume runs it") {
  struct Interruption {
    std::string name;
    std::vector<int> signals;
    std::vector<int> ranks;  // to each of which they go, one after the other
    bool loses_host;         // then, before the run is over
  };
  const std::vector<Interruption> interruptions = {
      {"SIGTERM on one host", {SIGTERM}, {2}, false},
      {"SIGTERM everywhere", {SIGTERM}, {3, 2, 1, 0}, false},
      {"Ctrl-C twice", {SIGINT, SIGINT}, {1, 2, 3, 0}, false},
      {"Ctrl-C, and then the launcher kills", {SIGINT}, {1, 2, 3, 0}, true},
  };
  for (const Interruption& interruption : interruptions) {
    CAPTURE(interruption.name);
    const TemporaryDirectory folder;
    const std::string cases = folder.path() + "/cases.jsonl";
    const std::string journal = folder.path() + "/journal.jsonl";
    write_file(cases, case_lines({kFour, kFour, kFour}));
    const std::string port = free_port();
    Launch launch(
        cases,
        [&](int rank) {
          Words variables = launchers()[0].variables(rank, port);
          variables.insert(variables.end(), {kToken, "SHARDPLAN_FAULT=stop run=2 rank=1"});
          return variables;
        },
        {"--journal", journal});
    launch.wait_for_stop(1);  // the second run stands still
    for (const int signal : interruption.signals) {
      for (const int rank : interruption.ranks) { kill(launch.process(rank).pid(), signal); }
      usleep(100'000);
    }
    if (interruption.loses_host) {
      kill(launch.process(2).pid(), SIGKILL);
    }
    const ProgramRun first = launch.process(0).wait();
    CHECK(first.exit_code == 128 + interruption.signals.front());
    CHECK(first.err.find("stopped by signal") != std::string::npos);
    CHECK(std::ranges::count(read_file(journal), '\n') == 1);
    Words words = words_of(cases);
    words.insert(words.end(), {"--journal", journal, "--resume"});
    const ProgramRun rest = StartedProgram(built_program(kProgram), words, {}).wait();
    CHECK(rest.exit_code == 0);
    CHECK(std::ranges::count(rest.out, '\n') == 3);
  }
}

TEST_CASE("plans that never begin because a host is lost are lines but no records") {
  const TemporaryDirectory folder;
  const std::string cases = folder.path() + "/cases.jsonl";
  const std::string journal = folder.path() + "/journal.jsonl";
  const SmallCase two = {.id = "two", .gpus = 2, .plan = R"("tp":2)"};
  write_file(cases, case_lines({kFour, kFour, kFour, two}));
  const std::string port = free_port();
  Launch launch(cases,
                [&](int rank) {
                  Words variables = launchers()[0].variables(rank, port);
                  variables.insert(variables.end(), {kToken, "SHARDPLAN_FAULT=stop run=2 rank=2"});
                  return variables;
                },
                {"--journal", journal});
  launch.wait_for_stop(2);
  kill(launch.process(2).pid(), SIGKILL);
  const ProgramRun first = launch.process(0).wait();
  CHECK(first.exit_code == 5);
  CHECK(std::ranges::count(first.out, '\n') == 4);
  CHECK(first.out.find(R"("reason":"not begun: )") != std::string::npos);
  const std::string records = read_file(journal);
  CHECK(std::ranges::count(records, '\n') == 3);
  CHECK(records.find("not begun") == std::string::npos);
  Words words = words_of(cases);
  words.insert(words.end(), {"--journal", journal, "--resume"});
  const ProgramRun rest = StartedProgram(built_program(kProgram), words, {}).wait();
  CHECK(rest.exit_code == 5);  // of the run that the host has died in
  CHECK(std::ranges::count(read_file(journal), '\n') == 4);
  CHECK(rest.out.find("not begun") == std::string::npos);
}

TEST_CASE("two processes of one rank are refused") {
  const TemporaryDirectory folder;
  const std::string cases = folder.path() + "/cases.jsonl";
  write_file(cases, case_line(kFour));
  const std::string port = free_port();
  Launch launch(cases, [&](int rank) {
    Words variables = launchers()[0].variables(std::min(rank, 2), port);
    variables.push_back(kToken);
    return variables;
  });
  const auto has_ended = [&](int rank) {
    siginfo_t info = {};
    waitid(P_PID, static_cast<id_t>(launch.process(rank).pid()), &info,
           WEXITED | WNOHANG | WNOWAIT);
    return info.si_pid != 0;
  };
  for (int i = 0; i < 10'000 && !has_ended(2) && !has_ended(3); ++i) { usleep(1000); }
  const int refused = has_ended(2) ? 2 : 3;
  const ProgramRun run = launch.process(refused).wait();
  CHECK(run.exit_code == 2);
  CHECK(run.err ==
        "shardplan: error: validate: rank 2: found two processes to which torchrun gives it, "
        "expected "
        "one\n");
  kill(launch.process(0).pid(), SIGTERM);
  CHECK(launch.process(0).wait().exit_code == 128 + SIGTERM);
  const ProgramRun other = launch.process(5 - refused).wait();
  INFO(other.err);
  CHECK(other.exit_code == 0);
}

TEST_CASE("a wrong token is refused, and without one nothing starts") {
  const TemporaryDirectory folder;
  const std::string cases = folder.path() + "/cases.jsonl";
  write_file(cases, case_line(kFour));
  const std::string port = free_port();
  const auto start = [&](int rank, const std::string& token) {
    Words variables = launchers()[0].variables(rank, port);
    variables.push_back(token);
    return StartedProgram(built_program(kProgram), words_of(cases), variables);
  };
  StartedProgram first = start(0, kToken);
  const ProgramRun stranger = start(1, "SHARDPLAN_TOKEN=another-secret-of-16").wait();
  CHECK(stranger.exit_code == 3);
  CHECK(stranger.err.find("a wrong token") != std::string::npos);
  kill(first.pid(), SIGTERM);
  CHECK(first.wait().exit_code == 128 + SIGTERM);
  for (const char* token : {"SHARDPLAN_TOKEN=", "SHARDPLAN_TOKEN=short"}) {
    const ProgramRun refused = start(0, token).wait();
    CHECK(refused.exit_code == 2);
    CHECK(refused.err.find("SHARDPLAN_TOKEN=$(openssl rand -hex 16)") != std::string::npos);
  }
}

TEST_CASE("gpu_check lets layouts in fp8 be as far from each other as runs may be from the host") {
  const std::string path = std::string(SHARDPLAN_SOURCE_DIR) + "/tools/gpu_check_ranks.py";
  const std::string text = read_file(path);
  const std::string name = "\nFP8_APART = ";
  const std::size_t begin = text.find(name);
  REQUIRE(begin != std::string::npos);
  const std::size_t end = text.find('\n', begin + 1);
  const JsonValue apart =
      parse_json(text.substr(begin + name.size(), end - begin - name.size()), path);
  CHECK(member(apart, {"loss"}).real == kFp8Tolerance.loss);
  CHECK(member(apart, {"gradient_norm"}).real == kFp8Tolerance.gradient_norm);
}

TEST_CASE("launchers that contradict each other are refused by name") {
  const TemporaryDirectory folder;
  const std::string cases = folder.path() + "/cases.jsonl";
  write_file(cases, case_line(kFour));
  Words variables = launchers()[0].variables(1, "29511");
  const Words slurm = launchers()[1].variables(2, "29511");
  variables.insert(variables.end(), slurm.begin(), slurm.end());
  variables.push_back(kToken);
  const ProgramRun run = StartedProgram(built_program(kProgram), words_of(cases), variables).wait();
  CHECK(run.exit_code == 2);
  CHECK(run.err.find("SLURM_PROCID: found 2, expected 1 as RANK says") != std::string::npos);
  CHECK(std::ranges::count(run.err, '\n') == 1);
}

}  // namespace shardplan
