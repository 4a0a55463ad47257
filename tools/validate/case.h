// A case as `validate` runs it: read, perhaps resized, lowered for a rank. The supervisor and its
// workers read the same text.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "data/read/case_line.h"
#include "validator/supervise/run_request.h"

namespace shardplan {

// What --find-max varies.
enum class SizeAxis { kMicroBatch, kSequenceLength, kLayers };
inline constexpr std::array<NamedValue<SizeAxis>, 3> kSizeAxes = {{
    {.value = SizeAxis::kMicroBatch, .name = "micro_batch"},
    {.value = SizeAxis::kSequenceLength, .name = "sequence_length"},
    {.value = SizeAxis::kLayers, .name = "layers"},
}};
constexpr const auto& names_of(SizeAxis) {
  return kSizeAxes;
}

// The same case with another size. Micro-batch: the number of microbatches stays. Layers: the first
// ones, or more in the pattern of those that are there.
Case sized_case(Case question, SizeAxis axis, std::int64_t value);
std::int64_t size_of(const Case& question, SizeAxis axis);
// Between neighbouring sizes that this plan can have.
std::int64_t size_step(const Case& question, SizeAxis axis);

// The text of RunRequest::plan, and back; the files are read again.
struct CaseSource {
  std::string text;              // the case line
  std::string place;             // "cases.jsonl:3"
  std::string data_folder = {};  // --data, or ""
  std::string files = {};        // texts of those that the line names
  std::optional<SizeAxis> axis = std::nullopt;
  std::int64_t value = 0;
};
std::string text_of(const CaseSource& source);
Case case_of(const std::string& plan_text);

// Nothing, or why the trainer cannot run the case: another framework's, an invalid plan, one that
// is not lowered. One line.
std::optional<std::string> why_not_run(const Case& question);

// For workers: the program of the rank, the model and the batch.
RankTask rank_run_of(const RunRequest& request, std::int64_t rank);

// Mean loss and norm of the gradients of every measured step as the host backend computes them, all
// ranks in this process.
struct HostSteps {
  std::vector<double> losses = {};
  std::vector<double> gradient_norms = {};
};
HostSteps host_steps(const RunRequest& request);

// How far a right run may be from them, relative. The bounds of the parity tests: sums of other
// orders and types, both float64 on the host. In fp8 what lies near the middle of two values is
// rounded to one there and to the other here, and the layers behind it round what comes of it: two
// right runs, also with --fp32, are as far apart as two independent roundings. What one rounding
// moves on the host, root mean square over 30 models as gpu_check --part ranks runs them, 128 wide
// on 512 tokens: 2.5e-3 of the loss, 8.8e-3 of the norm; the bound is 3 sqrt(2) of that. Narrower
// models and fewer tokens move more.
struct HostTolerance {
  double loss = 0;
  double gradient_norm = 0;
};
inline constexpr HostTolerance kFp8Tolerance = {.loss = 1.1e-2, .gradient_norm = 3.7e-2};
HostTolerance host_tolerance(bool on_host, Precision planned, RunPrecision run);

}  // namespace shardplan
