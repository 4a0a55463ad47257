#include "tools/validate/case.h"

#include <doctest/doctest.h>

#include "data/read/library.h"

namespace shardplan {
namespace {

// d, m: dense or with experts; in capitals where the layer has a window.
std::vector<LayerSpec> layers_of(const std::string& letters) {
  std::vector<LayerSpec> layers;
  for (const char letter : letters) {
    const bool has_window = letter == 'D' || letter == 'M';
    layers.push_back(
        {.is_moe = letter == 'm' || letter == 'M', .attention_window = has_window ? 512 : 0});
  }
  return layers;
}

std::string resized(const std::string& letters, std::int64_t count) {
  Case question;
  question.job.model.layers = layers_of(letters);
  std::string result;
  for (const LayerSpec& layer : sized_case(question, SizeAxis::kLayers, count).job.model.layers) {
    result += layer.attention_window > 0 ? (layer.is_moe ? 'M' : 'D') : (layer.is_moe ? 'm' : 'd');
  }
  return result;
}

}  // namespace

TEST_CASE("more layers go on in the pattern of those that are there, fewer are the first") {
  struct Pattern {
    std::string layers;
    std::string more;
  };
  const std::vector<Pattern> rows = {{"d", "dddd"},
                                     {"mm", "mmmmmm"},
                                     {"dmm", "dmmmmmm"},              // DeepSeek: dense ones first
                                     {"dm", "dmmmm"},                 // the same, cut short
                                     {"dmdm", "dmdmdmdmd"},           // experts in every second
                                     {"DDDDDd", "DDDDDdDDDDDdDD"},    // Gemma 3, one period
                                     {"DdDd", "DdDdDdDd"},            // Gemma 2
                                     {"DDDDDdDD", "DDDDDdDDDDDdDD"},  // a period and a part of it
                                     {"DMDm", "DMDmDMDmDMDm"}};       // Llama 4: both at once
  for (const Pattern& row : rows) {
    CAPTURE(row.layers);
    CHECK(resized(row.layers, std::ssize(row.more)) == row.more);
    CHECK(resized(row.more, std::ssize(row.layers)) == row.layers);
    CHECK(resized(row.layers, std::ssize(row.layers)) == row.layers);
  }
}

TEST_CASE("a published model with more layers goes on as its config does") {
  const auto layers = [](const std::string& model, std::int64_t count) {
    const Case question =
        read_case(R"({"schema":1,"id":"one","framework":"native","model":)" + model +
                      R"(,"cluster":"1x1-h200","training":{"sequence_length":16,)"
                      R"("num_microbatches":1},"plan":{}})",
                  "cases.jsonl:1", Library());
    return sized_case(question, SizeAxis::kLayers, count).job.model.layers;
  };
  const auto config = [](const std::string& more, std::int64_t count) {
    return R"({"hidden_size":32,"intermediate_size":64,"num_attention_heads":4,"vocab_size":96,)"
           R"("num_key_value_heads":2,"head_dim":8,"num_hidden_layers":)" +
           std::to_string(count) + "," + more + "}";
  };
  const std::string gemma = R"("model_type":"gemma3_text","sliding_window":8)";
  const std::string qwen = R"("model_type":"qwen3_moe","num_experts":4,"num_experts_per_tok":2,)"
                           R"("moe_intermediate_size":32,"decoder_sparse_step":2)";
  for (const std::string& more : {gemma, qwen}) {
    CHECK(layers(config(more, 12), 40) == layers(config(more, 40), 40));
  }
}

}  // namespace shardplan
