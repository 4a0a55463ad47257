#include "validator/supervise/fault.h"

#include <unistd.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <thread>

namespace shardplan {
namespace {

[[noreturn]] void refuse(const std::string& word) {
  throw std::invalid_argument("SHARDPLAN_FAULT: found '" + word +
                              "', expected a kind of fault, or run, rank, phase, step or operation "
                              "with = and a value");
}

std::int64_t number_of(const std::string& word, std::string_view value) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size() || number < 0) {
    refuse(word);
  }
  return number;
}

}  // namespace

Fault fault_of(const std::string& text) {
  Fault fault;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (equals == std::string::npos) {
      const auto kind = value_of<FaultKind>(name);
      kind ? void(fault.kind = *kind) : refuse(word);
    } else if (name == "phase") {
      const auto phase = value_of<RunPhase>(value);
      phase ? void(fault.phase = *phase) : refuse(word);
    } else if (name == "run") {
      fault.run = number_of(word, value);
    } else if (name == "rank") {
      fault.rank = number_of(word, value);
    } else if (name == "step") {
      fault.step = number_of(word, value);
    } else if (name == "operation") {
      fault.operation = number_of(word, value);
    } else {
      refuse(word);
    }
  }
  return fault;
}

std::vector<Fault> faults_of(const std::string& text) {
  std::vector<Fault> faults;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ';');) { faults.push_back(fault_of(part)); }
  return faults;
}

void strike_if_due(const Fault& fault, RunPhase phase, std::int64_t step, std::int64_t operation) {
  const bool is_here = phase == RunPhase::kSteps
                           ? step == fault.step && operation == fault.operation
                           : operation < 0;
  if (phase != fault.phase || !is_here) {
    return;
  }
  switch (fault.kind) {
    case FaultKind::kKill: std::raise(SIGKILL); return;
    case FaultKind::kSegv:
      std::signal(SIGSEGV, SIG_DFL);
      std::raise(SIGSEGV);
      return;
    case FaultKind::kExit: _exit(7);
    case FaultKind::kStop: std::raise(SIGSTOP); return;
    case FaultKind::kThrow: throw std::runtime_error("a fault on purpose");
    case FaultKind::kGarbage: {
      constexpr std::string_view kGarbage = "\x01 what no worker says\n";
      [[maybe_unused]] const ssize_t written =
          write(fault.control, kGarbage.data(), kGarbage.size());
      [[fallthrough]];  // and stays where it said so
    }
    case FaultKind::kHang:
      for (;;) { std::this_thread::sleep_for(std::chrono::seconds(1)); }
  }
}

}  // namespace shardplan
