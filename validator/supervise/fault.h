// Faults on purpose, so that tests see how the supervisor deals with real ones. From the
// environment variable SHARDPLAN_FAULT, words in any order:
//   kill|segv|exit|stop|hang|throw|garbage [run=N] [rank=N] [phase=WORD] [step=N] [operation=N]
// and more of them after semicolons.
// The process of rank 0 of the first run meets it in phase "steps", step 0, operation 0, unless the
// words say otherwise; phases other than "steps" have neither steps nor operations.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "validator/supervise/outcome.h"

namespace shardplan {

enum class FaultKind {
  kKill,     // SIGKILL to itself
  kSegv,     // SIGSEGV
  kExit,     // exit code 7
  kStop,     // SIGSTOP: stands still, and cannot even answer a request to end
  kHang,     // sleeps for ever
  kThrow,    // an exception that is no outcome
  kGarbage,  // writes to its supervisor what is no message
};
inline constexpr std::array<NamedValue<FaultKind>, 7> kFaultKinds = {{
    {.value = FaultKind::kKill, .name = "kill"},
    {.value = FaultKind::kSegv, .name = "segv"},
    {.value = FaultKind::kExit, .name = "exit"},
    {.value = FaultKind::kStop, .name = "stop"},
    {.value = FaultKind::kHang, .name = "hang"},
    {.value = FaultKind::kThrow, .name = "throw"},
    {.value = FaultKind::kGarbage, .name = "garbage"},
}};
constexpr const auto& names_of(FaultKind) {
  return kFaultKinds;
}

struct Fault {
  FaultKind kind = FaultKind::kKill;
  std::int64_t run = 1;
  std::int64_t rank = 0;
  RunPhase phase = RunPhase::kSteps;
  std::int64_t step = 0;
  std::int64_t operation = 0;
  int control = -1;  // where garbage goes
};

// Throws std::invalid_argument, naming the word that it does not know.
Fault fault_of(const std::string& text);  // one of them
std::vector<Fault> faults_of(const std::string& text);

// Does what the fault says if the position is its own.
void strike_if_due(const Fault& fault, RunPhase phase, std::int64_t step, std::int64_t operation);

}  // namespace shardplan
