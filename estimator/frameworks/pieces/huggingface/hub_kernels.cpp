#include "estimator/frameworks/pieces/huggingface/hub_kernels.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace shardplan::huggingface {
namespace {

struct Row {
  std::string_view family;
  HubKernels kernels;
};

constexpr HubKernels kBoth = {.norms = true, .rotary = true};
constexpr HubKernels kNormsAlone = {.norms = true};
constexpr HubKernels kRotaryAlone = {.rotary = true};

// By decorators of each modeling file: use_kernel_forward_from_hub("RMSNorm") of the class of
// norms, and use_kernelized_func(apply_rotary_pos_emb) of that of attention.
constexpr std::array kRows = std::to_array<Row>({
    {"", kBoth},
    {"llama", kBoth},
    {"mistral", kBoth},
    {"ministral", kBoth},
    {"ministral3", kBoth},
    {"mixtral", kBoth},
    {"qwen2", kBoth},
    {"qwen2_moe", kBoth},
    {"qwen3", kBoth},
    {"qwen3_moe", kBoth},
    {"qwen3_vl_text", kBoth},
    {"qwen3_vl_moe_text", kBoth},
    {"smollm3", kBoth},
    {"granite", kBoth},
    {"granitemoe", kBoth},
    {"granitemoeshared", kBoth},
    {"olmoe", kBoth},
    {"arcee", kBoth},
    {"dots1", kBoth},
    {"gpt_oss", kBoth},
    {"phi3", kNormsAlone},
    {"glm", kNormsAlone},
    {"glm4", kNormsAlone},
    {"seed_oss", kNormsAlone},
    {"ernie4_5", kNormsAlone},
    {"ernie4_5_moe", kNormsAlone},
    {"minimax_m2", kNormsAlone},
    {"deepseek_v2", kNormsAlone},
    {"deepseek_v3", kNormsAlone},
    {"glm4_moe_lite", kNormsAlone},
    {"mistral4", kNormsAlone},
    {"gemma", kRotaryAlone},
    {"gemma2", kRotaryAlone},
    {"gemma3_text", kRotaryAlone},
    {"starcoder2", kRotaryAlone},
    {"cohere", {}},
    {"cohere2", {}},
    {"falcon", {}},
    {"gpt2", {}},
    {"gpt_neox", {}},
    {"gptj", {}},
    {"nemotron", {}},
    {"stablelm", {}},
    {"qwen3_next", {}},
    {"qwen3_5_text", {}},
    {"qwen3_5_moe_text", {}},
    {"gemma4_text", {}},
});

}  // namespace

HubKernels hub_kernels_of(const ModelSpec& model) {
  const auto found = std::ranges::find(kRows, model.family, &Row::family);
  return found == kRows.end() ? HubKernels{.is_read = false} : found->kernels;
}

eager::Tensor turned_copy(eager::Graph& graph, const eager::Tensor& input) {
  eager::NodeBuilder node(graph, {&input});
  return node.finish(graph.make(input.elements, input.dtype),
                     [](eager::BackwardCall& call) { return std::move(call.gradients); });
}

}  // namespace shardplan::huggingface
