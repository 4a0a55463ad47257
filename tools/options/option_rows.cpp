#include "tools/options/option_rows.h"

#include <utility>

#include "estimator/plan/units.h"
#include "tools/options/words.h"
#include "tools/validate/case.h"

namespace shardplan {

OptionRow count(const char* name, const char* help, std::int64_t low, std::int64_t high) {
  return {.name = name,
          .argument = "N",
          .help = help,
          .kind = OptionKind::kCount,
          .low = low,
          .high = high};
}

OptionRow text(const char* name, const char* argument, const char* help) {
  return {.name = name, .argument = argument, .help = help, .kind = OptionKind::kText};
}

OptionRow output_file(const char* name, const char* help) {
  OptionRow row = text(name, "FILE", help);
  row.is_output = true;
  return row;
}

OptionRow input_file(const char* name, const char* argument, const char* help) {
  OptionRow row = text(name, argument, help);
  row.is_input = true;
  return row;
}

OptionRow choice(const char* name, const char* help, std::vector<std::string> choices) {
  std::string argument;
  for (const std::string& word : choices) { argument += (argument.empty() ? "" : "|") + word; }
  return {.name = name,
          .argument = argument,
          .help = help,
          .kind = OptionKind::kChoice,
          .choices = std::move(choices)};
}

OptionRow number(const char* name, const char* help, std::int64_t low, std::int64_t high) {
  return {.name = name,
          .argument = "X",
          .help = help,
          .kind = OptionKind::kNumber,
          .low = low,
          .high = high};
}

OptionRow repeated(OptionRow row) {
  row.repeatable = true;
  return row;
}

OptionRow flag(const char* name, const char* help) {
  return {.name = name, .help = help, .kind = OptionKind::kSwitch};
}

std::vector<OptionRow> accuracy_rows() {
  return {
      flag("layouts",
           "step times only: do predictions choose the fastest measured layout of every model and "
           "number of GPUs"),
      flag("known-runs",
           "step times only, of runs on more than 64 GPUs: every run with its error, and what they "
           "say together"),
  };
}

std::vector<OptionRow> validate_rows() {
  OptionRow limit = {.name = "memory-limit",
                     .argument = "SIZE",
                     .help = "as if every GPU had no more than this: 80GiB, 80GB",
                     .kind = OptionKind::kBytes,
                     .low = kMiB,
                     .high = kGiB * 1024 * 16};
  return {
      choice("backend", "where ranks run: one process on each GPU, or on the host; default cuda",
             {"cuda", "host"}),
      count("steps", "measured steps; default 10", 1, 1'000'000),
      count("warmup", "steps before them; default 3", 0, 1'000'000),
      count("seed", "of weights and tokens; default 1", 0, std::int64_t{1} << 53),
      number("timeout", "seconds in which no rank moves, then the run is stuck; default 120", 0,
             86'400),
      std::move(limit),
      text("simulate-rank", "R/W",
           "only this rank of W, alone: memory and compute, neither loss nor tokens/s"),
      choice("find-max", "the largest size of this that really runs, by bisection",
             words_of(kSizeAxes)),
      output_file(
          "trace",
          "timeline of one more step of every plan that runs, all ranks, to open in Perfetto or "
          "chrome://tracing"),
      flag("force", "also run plans that are predicted to run out of memory"),
      flag("fp32", "fp32 wherever the plan has bf16, at twice the bytes: for parity"),
      flag("check-against-host",
           "hold losses and gradient norms against the host backend in float64"),
      output_file("journal", "append every finished run to this file, on disk before the next"),
      flag("resume", "go on where a killed batch stopped: runs of the journal are not repeated"),
      flag("fail-on-oom", "exit 1 if a plan runs out of memory"),
  };
}

std::vector<OptionRow> calibrate_rows() {
  return {
      flag("memory", "context, libraries and NCCL of this machine's GPUs, for the trainer's plans"),
      flag("time", "products, attention, copies, launches and collectives of this machine's GPUs"),
      count("gpus", "with --time: so many of this host; default all; collectives need two", 1, 16),
      text("gpu", "ID|FILE", "the GPU whose file is written again with the measured values in it"),
      output_file("cluster-out",
                  "also a file for --cluster: this host, its GPUs with what was measured of them"),
  };
}

}  // namespace shardplan
