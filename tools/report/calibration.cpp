#include "tools/report/calibration.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "data/clusters/machine.h"
#include "tools/measure/calibrate_memory.h"
#include "tools/measure/calibration.h"
#include "tools/report/values.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

Json plan_of(CalibrationPlan plan) {
  switch (plan) {
    case CalibrationPlan::kAlone: return {{"dp", 1}, {"zero", 0}};
    case CalibrationPlan::kReducing: return {{"dp", 2}, {"zero", 1}};
    case CalibrationPlan::kSending:
      return {{"pp", 2}, {"dp", 1}, {"zero", 0}, {"schedule", "1f1b"}};
  }
  return {};
}

}  // namespace

std::string calibration_case(const std::string& gpu, CalibrationPlan plan) {
  const std::int64_t gpus = plan == CalibrationPlan::kAlone ? 1 : 2;
  const Json line = {{"schema", 1},
                     {"id", "calibration"},
                     {"framework", "native"},
                     {"model",
                      {{"model_type", "llama"},
                       {"hidden_size", 4096},
                       {"intermediate_size", 14336},
                       {"num_hidden_layers", 2},
                       {"num_attention_heads", 32},
                       {"num_key_value_heads", 8},
                       {"vocab_size", 128256},
                       {"tie_word_embeddings", false}}},
                     {"cluster", {{"gpu", gpu}, {"gpus_per_node", gpus}, {"nodes", 1}}},
                     {"training",
                      {{"sequence_length", 2048},
                       {"micro_batch", 1},
                       {"num_microbatches", 2},
                       {"precision", "bf16"}}},
                     {"plan", plan_of(plan)}};
  return line.dump();
}

std::string with_native_memory(const std::string& gpu_file, const NativeMemory& memory) {
  Json file = Json::parse(gpu_file);
  Json& measured = file["measured"];
  if (measured.is_null()) {
    measured = Json::object();
    measured["source"] = memory.source;
  }
  const auto if_known = [](const std::optional<std::int64_t>& bytes) {
    return bytes ? Json(*bytes) : Json(nullptr);
  };
  measured["native"] = {{"context_bytes", memory.context_bytes},
                        {"library_bytes", memory.library_bytes},
                        {"nccl_bytes", if_known(memory.nccl_bytes)},
                        {"first_send_bytes", if_known(memory.first_send_bytes)},
                        {"source", memory.source}};
  return indented_text(file);
}

namespace {

// Microseconds that a further rank adds to the smallest all-gather; 0 where groups of one size, or
// none, were measured.
double step_latency_us(const GpuSpec& gpu) {
  constexpr double kMicrosPerS = 1e6;
  std::vector<CurvePoint> smallest;  // seconds by ranks
  if (gpu.times) {
    for (const CollectiveCurve& curve : gpu.times->collectives) {
      if (curve.collective == Collective::kAllGather) {
        smallest.push_back(
            {.size = static_cast<double>(curve.ranks), .value = curve.seconds.front().value});
      }
    }
  }
  if (smallest.size() < 2) {
    return 0;
  }
  const CurvePoint& few = smallest.front();
  const CurvePoint& many = smallest.back();
  return kMicrosPerS * std::max(0.0, (many.value - few.value) / (many.size - few.size));
}

}  // namespace

std::string calibrated_cluster(const std::string& gpu_file, std::int64_t num_gpus,
                               const std::string& source) {
  const GpuSpec gpu = read_gpu(parse_json(gpu_file, "gpu"), "gpu");
  Json file = {{"name", "calibrated-1x" + std::to_string(num_gpus) + "-" + gpu.id},
               {"gpu", Json::parse(gpu_file)},
               {"gpus_per_node", num_gpus},
               {"nodes", 1}};
  if (const double latency_us = step_latency_us(gpu); latency_us > 0) {
    constexpr double kHundred = 100;
    file["intra_node_latency_us"] = std::round(latency_us * kHundred) / kHundred;
  }
  file["source"] = source;
  return indented_text(file);
}

}  // namespace shardplan
