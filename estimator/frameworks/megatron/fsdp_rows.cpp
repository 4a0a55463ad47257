#include "estimator/frameworks/megatron/fsdp_rows.h"

#include <string>
#include <string_view>
#include <utility>

#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/ledger/block_rows.h"

namespace shardplan::megatron {
namespace {

// Elements of a limit of Megatron-FSDP: `otherwise`, unless its unit of communication was given.
std::string fsdp_limit(const Job& job, std::string_view unit, std::string_view otherwise) {
  const std::int64_t given = job.profile.suggested_communication_unit_size;
  return given > 0 ? std::string(unit) + " of " + std::to_string(given) : std::string(otherwise);
}

std::string queue_formula(const Job& job, const Plan& plan) {
  const char* const limit = plan.zero == 2 ? "max(1e9, a bucket's)" : "max(1e9, 2n)";
  return "gradients of the layer in use, and those before the reduce-scatter: " +
         fsdp_limit(job, "the unit", limit) + " elements and one bucket";
}

}  // namespace

void add_fsdp_rows(std::vector<Row>& rows, const Job& job, const Plan& plan,
                   const StagePieces& pieces) {
  const StagePoint& peak = pieces.peaks.moments[static_cast<std::size_t>(pieces.peaks.peak)];
  if (peak.point.bytes < 0) {
    return;
  }
  const std::size_t chunk = static_cast<std::size_t>(pieces.schedule[peak.state].chunk);
  const FsdpBuffers& buffers = pieces.buffers[chunk];
  if (buffers.empty()) {
    return;
  }
  const FsdpUnit& unit = buffers.units[unit_place(pieces.layout.chunks[chunk], peak.point)];
  const auto add = [&](std::string name, std::int64_t bytes, DType dtype, std::string born,
                       std::string formula) {
    rows.push_back({.component = Component::kCommunication,
                    .name = std::move(name),
                    .elements = bytes / bytes_of(dtype),
                    .dtype = dtype,
                    .bytes = bytes,
                    .copies = bytes > 0 ? 1 : 0,
                    .born = {std::move(born)},
                    .dies = {std::string(name_of(Phase::kBackward))},
                    .formula = std::move(formula)});
  };
  const BucketRange none;
  const bool is_replay = pieces.peaks.peak == MomentKind::kReplay;
  const bool is_backward = phase_of(pieces.peaks.peak) == Phase::kBackward;
  add("zero.gathered_layers",
      buffers.parameter_bytes(is_replay     ? unit.gathered_replay
                              : is_backward ? unit.gathered_backward
                                            : unit.gathered_forward),
      activation_dtype(plan.precision), "forward",
      "the layer in use and those that it gathers ahead: " +
          fsdp_limit(job, "half the unit", "max(5e8, n)") + " elements");
  const DType dtype = fsdp_gradient_dtype(plan);
  add("zero.reduction_queue",
      buffers.gradient_bytes(is_replay     ? unit.gradients_replay
                             : is_backward ? unit.gradients_backward
                                           : none),
      dtype, "backward", queue_formula(job, plan));
  add("zero.held_gradients", is_backward ? unit.held_bytes : 0, dtype, "backward",
      plan.zero == 2 && !job.profile.overlap_grad_reduce
          ? "all gradients: one bucket without overlap_grad_reduce"
          : "embedding and head in one bucket: reduced when both gradients are there");
}

}  // namespace shardplan::megatron
