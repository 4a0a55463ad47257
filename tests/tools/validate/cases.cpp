#include "tests/tools/validate/cases.h"

namespace shardplan {
namespace {

constexpr const char* kDense =
    R"({"model_type":"llama","hidden_size":32,"intermediate_size":64,"num_hidden_layers":2,)"
    R"("num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,"vocab_size":96,)"
    R"("tie_word_embeddings":false})";
constexpr const char* kExperts =
    R"({"model_type":"mixtral","hidden_size":32,"intermediate_size":64,"num_hidden_layers":2,)"
    R"("num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,"vocab_size":96,)"
    R"("num_local_experts":4,"num_experts_per_tok":2,"tie_word_embeddings":false})";

}  // namespace

std::string case_line(const SmallCase& small) {
  const std::string model = small.has_experts ? kExperts : kDense;
  return R"({"schema":1,"id":")" + small.id + R"(","framework":")" + small.framework +
         R"(","model":)" + model + R"(,"cluster":{"gpu":"h200","gpus_per_node":)" +
         std::to_string(small.gpus) + R"(,"nodes":1},"training":{"sequence_length":)" +
         std::to_string(small.sequence_length) + R"(,"micro_batch":)" +
         std::to_string(small.micro_batch) +
         R"(,"num_microbatches":2,"precision":"bf16"},"plan":{)" + small.plan + "}}\n";
}

std::string case_lines(const std::vector<SmallCase>& cases) {
  std::string lines;
  for (const SmallCase& small : cases) { lines += case_line(small); }
  return lines;
}

const JsonValue& member(const JsonValue& value, const std::vector<std::string>& path) {
  static const JsonValue nothing;
  const JsonValue* at = &value;
  for (const std::string& step : path) {
    const JsonValue* next = &nothing;
    if (at->kind == JsonKind::kArray) {
      next = &at->items.at(std::stoul(step));
    }
    for (const JsonMember& each : at->members) {
      if (each.name == step) {
        next = &each.value;
      }
    }
    at = next;
  }
  return *at;
}

}  // namespace shardplan
