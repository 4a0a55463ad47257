// Hugging Face's decoder models under eager autograd, written in the order of their source.
// Sources: transformers 5.17 models/llama/modeling_llama.py and its kin (mistral, qwen2, qwen3),
// loss/loss_utils.py, modeling_layers.py; peft 0.21 tuners/lora/layer.py.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "estimator/frameworks/pieces/eager/checkpoint.h"
#include "estimator/frameworks/pieces/eager/module.h"
#include "estimator/frameworks/pieces/eager/operations.h"
#include "estimator/frameworks/pieces/huggingface/holder.h"
#include "estimator/frameworks/pieces/huggingface/layer.h"
#include "estimator/frameworks/pieces/huggingface/loss.h"
#include "estimator/plan/job.h"

namespace shardplan::huggingface {

class CausalLm {
 public:
  CausalLm(eager::Graph& graph, Holder& holder, const Job& job, const Plan& plan);

  // Puts the weights on the GPU.
  void build();
  // A microbatch there and back, under autocast to that type, if any; `syncs` as the holder has it.
  void train(bool syncs, std::optional<DType> autocast = std::nullopt);
  // What the optimizer updates, in the order of model.parameters().
  std::vector<eager::Parameter*> trained();

 private:
  // To the loss.
  eager::Tensor forward();
  // What layers share goes with the forward pass, or with the backward pass that runs them again.
  void drop_shared();
  void build_linear(Linear& linear, LinearLayer place, eager::LinearShape shape, bool has_bias);
  void build_attention(Layer& layer);
  void build_latent(Layer& layer);
  void build_mixer(Layer& layer, const LayerSpec& spec);
  void build_delta_net(DeltaNet& net);
  void build_convolution(ShortConvolution& mixer);
  void build_mamba(Mamba& mixer);
  // A product beside which no adapter stands.
  void build_plain(Linear& linear, eager::LinearShape shape, bool has_bias);
  void build_ffn(FeedForward& ffn, std::int64_t width, bool has_bias);
  void build_norm(Norm& norm, std::int64_t width);
  void build_layer(Layer& layer, std::size_t place);
  void build_experts(Layer& layer);
  // Of all experts together.
  void load_experts(Experts& experts, eager::Parameter& weights, eager::LinearShape shape);
  void load_end(eager::Parameter& table, bool has_copy);
  eager::Parameter& head() { return job_.model.tied_embeddings ? table_ : head_; }
  bool reads_head() const {
    return job_.profile.head_loss != HeadLoss::kStock && !loop_takes_loss();
  }
  bool loop_takes_loss() const {
    const HeadLoss kind = job_.profile.head_loss;
    return kind == HeadLoss::kTwice || kind == HeadLoss::kPerToken;
  }
  eager::Tensor layer_output(std::size_t index, const eager::Tensor& input);
  eager::Tensor embed(const eager::Tensor& token_ids);
  void call_rotary();
  eager::Tensor head_product(const eager::Tensor& hidden);
  eager::Tensor call_decoder(const eager::Tensor& token_ids);
  eager::Tensor call_whole(const eager::Tensor& token_ids, const eager::CheckpointedFunction& run);
  eager::Module whole();
  void read_head();
  eager::Tensor with_gradient(const eager::Tensor& hidden);
  eager::Tensor decoder(const eager::Tensor& token_ids);
  HeadShape head_shape() const;
  eager::Tensor all_logits(const eager::Tensor& hidden);
  eager::Tensor loss_of_loop(const eager::Tensor& logits, const eager::Tensor& labels);
  eager::Tensor stock_loss(const eager::Tensor& hidden, const eager::Tensor& labels,
                           eager::Tensor& logits);
  eager::Tensor loss(const eager::Tensor& hidden, const eager::Tensor& labels,
                     eager::Tensor& logits);

  eager::Graph& graph_;
  Holder& holder_;
  const Job& job_;
  const ModelClass& class_;
  Sizes sizes_;
  LayerRun run_;
  DType weights_ = DType::kBf16;
  DType compute_ = DType::kBf16;
  DType ends_ = DType::kBf16;  // of norms, embedding and head
  bool trains_all_ = true;
  eager::Parameter table_;
  eager::Parameter head_;                   // where it is not the table
  std::deque<eager::Parameter> originals_;  // that trained copies stand in for
  std::vector<Layer> layers_;
  Norm final_norm_;
  SharedByLayer shared_;
  eager::Tensors cache_;  // which the model returns with its outputs
};

}  // namespace shardplan::huggingface
