#include "tools/report/tuning_json.h"

#include <nlohmann/json.hpp>

#include "data/read/case_tuning.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Adapters& adapters) {
  Json targets = Json::array();
  for (std::size_t i = 0; i < adapters.targets.size(); ++i) {
    if (adapters.targets.at(i)) {
      targets.push_back(kLinearLayerNames.at(i));
    }
  }
  return {{"rank", adapters.rank},
          {"targets", targets.size() == adapters.targets.size() ? Json("all") : targets},
          {"dropout", adapters.dropout},
          {"dora", adapters.decomposes_weights},
          {"dtype", name_of(adapters.dtype)},
          {"trains_table", adapters.trains_table},
          {"trains_head", adapters.trains_head}};
}

}  // namespace

void add_tuning(Json& json, const Job& job) {
  if (job.adapters.rank > 0) {
    json["adapters"] = json_of(job.adapters);
  }
  if (job.quantized.kind != Quantization::kNone) {
    json["quantization"] = {{"kind", name_of(job.quantized.kind)},
                            {"double", job.quantized.is_double}};
  }
}

}  // namespace shardplan
