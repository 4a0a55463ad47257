// A case as `validate` runs it: read, perhaps resized, lowered for a rank. The supervisor and its
// workers read the same text.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "data/case_line.h"
#include "validator/run_request.h"

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

// The same case with another size. Micro-batch: the number of microbatches stays. Layers: copies of
// the first, or the first ones.
Case sized_case(Case question, SizeAxis axis, std::int64_t value);
std::int64_t size_of(const Case& question, SizeAxis axis);
// Between neighbouring sizes that this plan can have.
std::int64_t size_step(const Case& question, SizeAxis axis);

// The text of RunRequest::plan, and back.
struct CaseSource {
  std::string text;              // the case line
  std::string place;             // "cases.jsonl:3"
  std::string data_folder = {};  // --data, or ""
  std::optional<SizeAxis> axis = std::nullopt;
  std::int64_t value = 0;
};
std::string text_of(const CaseSource& source);
Case case_of(const std::string& plan_text);

// Nothing, or why the trainer cannot run the case: another framework's, an invalid plan, one that
// is not lowered. One line.
std::optional<std::string> why_not_run(const Case& question);

// For workers: the program of the rank, the model and the batch.
RankRun rank_run_of(const RunRequest& request, std::int64_t rank);

// Mean loss and norm of the gradients of every measured step as the host backend computes them, all
// ranks in this process.
struct HostSteps {
  std::vector<double> losses = {};
  std::vector<double> gradient_norms = {};
};
HostSteps host_steps(const RunRequest& request);

}  // namespace shardplan
