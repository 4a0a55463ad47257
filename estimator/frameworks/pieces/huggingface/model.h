// Hugging Face's decoder models under eager autograd, written in the order of their source.
// Sources: transformers 5.17 models/llama/modeling_llama.py and its kin (mistral, qwen2, qwen3),
// loss/loss_utils.py, modeling_layers.py; peft 0.21 tuners/lora/layer.py.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "estimator/frameworks/pieces/eager/checkpoint.h"
#include "estimator/frameworks/pieces/eager/module.h"
#include "estimator/frameworks/pieces/eager/offload.h"
#include "estimator/frameworks/pieces/eager/operations.h"
#include "estimator/frameworks/pieces/huggingface/holder.h"
#include "estimator/frameworks/pieces/huggingface/layer.h"
#include "estimator/frameworks/pieces/huggingface/loss.h"
#include "estimator/frameworks/pieces/huggingface/weights/parameter_names.h"
#include "estimator/plan/job.h"
#include "estimator/plan/tower.h"

namespace shardplan::huggingface {

// A module of multi-token prediction: norms of an embedding and a hidden state, their projection, a
// layer like the last, and a norm.
struct PredictionModule {
  Norm embedding_norm, hidden_norm, final_norm;
  Linear projection;
  Layer layer;
};

class CausalLm {
 public:
  CausalLm(eager::Graph& graph, Holder& holder, const Job& job, const Plan& plan);

  // Puts the weights on the GPU, and tells their names to who asks.
  void build(std::vector<NamedParameter>* named = nullptr);
  // Another model whose log-probabilities stand beside this one's in the loss; none: this one
  // without its adapters.
  void refer_to(CausalLm* reference) { reference_ = reference; }
  // Keys and values of all layers stay with what the model returns, as it is told to keep them.
  void keep_keys() { run_.cache = &cache_; }
  // A microbatch there and back, under autocast to that type, if any; `syncs` as the holder has it.
  void train(bool syncs, std::optional<DType> autocast = std::nullopt);
  // What the optimizer updates, in the order of model.parameters().
  std::vector<eager::Parameter*> trained();
  // Of them matrices of adapters.
  std::vector<eager::Parameter*> trained_factors();
  // Of saved tensors on the host, the most at once, in page-locked memory.
  std::int64_t most_host_bytes() const;

 private:
  // To the loss.
  eager::Tensor forward();
  // What accelerate does with what a model returns.
  void end_call(eager::Tensor& returned);
  // --- objectives other than the next token (objectives/) ---
  eager::Tensor objective_forward();
  // What a call of the whole model returns; the same without a graph, and of the reference.
  eager::Tensor logits_of(const eager::Tensor& token_ids);
  eager::Tensor logits_without_graph(const eager::Tensor& token_ids);
  eager::Tensor reference_logits(const eager::Tensor& token_ids);
  eager::Tensor log_probabilities_of(const eager::Tensor& logits, const eager::Tensor& token_ids);
  void call_mismatched(const eager::Tensor& logits, const eager::Tensor& token_ids);
  void log_logits(const eager::Tensor& logits);
  eager::Tensor dpo_loss(const eager::Tensor& token_ids);
  eager::Tensor odds_loss(const eager::Tensor& token_ids);
  eager::Tensor kto_loss(const eager::Tensor& token_ids, const eager::Tensor& mismatched);
  eager::Tensor kto_loss_of_factory(const eager::Tensor& token_ids,
                                    const eager::Tensor& mismatched);
  eager::Tensor loss_of_swift(const eager::Tensor& token_ids, const eager::Tensor& mismatched);
  eager::Tensor scores(const eager::Tensor& token_ids, const eager::Tensor& labels);
  eager::Tensor value_head(const eager::Tensor& hidden);
  bool is_of_factory() const {
    return job_.profile.objective_trainer == ObjectiveTrainer::kFactory;
  }
  bool is_of_swift() const { return job_.profile.objective_trainer == ObjectiveTrainer::kSwift; }
  bool compares() const {
    return has_reference(job_.profile.objective) && !job_.profile.precomputes_reference;
  }
  // A layer of labels stands behind the model: in place of the head, or as a value head beside it.
  bool has_label_head() const { return ends_in_labels(job_.profile.objective); }
  bool calls_head() const { return !has_label_head() || is_of_factory(); }
  // What layers share goes with the forward pass, or with the backward pass that runs them again.
  void drop_shared();
  // A name within the module that is being built: "q_proj" and ".weight".
  struct Name {
    std::string_view module;
    std::string_view leaf;
  };
  std::string full_name(const Name& name) const;
  bool trains(const Name& name, const Shape& shape);
  void load(eager::Parameter& parameter, const Name& name, const Shape& shape, DType dtype);
  void build_tower();
  void build_tower_linear(const TowerTensor& tensor);
  void build_linear(Linear& linear, LinearLayer place, std::string_view name,
                    eager::LinearShape shape, bool has_bias);
  void build_adapter(Linear& linear);
  void build_attention(Layer& layer);
  void build_latent(Layer& layer);
  bool has_per_layer_inputs() const { return job_.model.per_layer_embedding.width > 0; }
  void build_mixer(Layer& layer, const LayerSpec& spec);
  void build_delta_net(DeltaNet& net);
  void build_kimi_delta(KimiDelta& mixer);
  void build_convolution(ShortConvolution& mixer);
  void build_mamba(Mamba& mixer);
  void build_selective(SelectiveScan& mixer);
  void build_prediction(PredictionModule& module);
  void load_packed(Linear& linear);
  // Of packed values that are a parameter, where float storage is of that type; none: they are not.
  std::optional<DType> stored_type(DType floats) const;
  void build_head();
  void build_label_head();
  void build_ffn(FeedForward& ffn, std::int64_t width, bool has_bias);
  void build_bottleneck(FeedForward& ffn);
  void build_norm(Norm& norm, std::string_view name, std::int64_t width);
  void build_norms(Layer& layer);
  void build_per_layer_table();
  void build_per_layer_input(Layer& layer);
  void build_layer(Layer& layer, std::size_t place);
  void build_experts(Layer& layer);
  // Of all experts together.
  void load_experts(Experts& experts, eager::Parameter& weights, eager::Parameter& packed,
                    std::string_view name, eager::LinearShape shape);
  void load_end(eager::Parameter& table, std::string_view name, std::int64_t rows, bool has_copy);
  eager::Parameter& table_in_use();
  eager::Parameter& head() { return job_.model.tied_embeddings ? table_ : head_.weight; }
  bool reads_head() const {
    return job_.profile.head_loss != HeadLoss::kStock && !loop_takes_loss();
  }
  // Of the logits that the model returns; all but kTwice and kAnchored leave out the model's own.
  bool loop_takes_loss() const { return takes_logits(job_.profile.head_loss) || is_anchored(); }
  // A frozen model is called in front of this one, and its logits are part of the loss (ASFT).
  bool is_anchored() const { return job_.profile.head_loss == HeadLoss::kAnchored; }
  bool checkpoints(std::size_t index) const;
  eager::Tensor layer_output(std::size_t index, const eager::Tensor& input);
  // Of a layer, which may have an embedding of its own as a second input.
  eager::Tensor reentrant(std::size_t index, const eager::Tensor& input,
                          const eager::CheckpointedFunction& run);
  eager::Tensor embed(const eager::Tensor& token_ids);
  eager::Tensor with_positions(const eager::Tensor& hidden);
  void call_rotary();
  eager::Tensor head_product(const eager::Tensor& hidden);
  eager::Tensor call_decoder(const eager::Tensor& token_ids);
  eager::Tensor call_whole(const eager::Tensor& token_ids, const eager::CheckpointedFunction& run);
  eager::Module whole();
  void read_head();
  // enable_input_require_grads hooks into the embedding.
  bool asks_for_inputs() const { return !trains_all_ || job_.profile.checkpoints_frozen; }
  eager::Tensor with_gradient(const eager::Tensor& hidden);
  eager::Tensor decoder(const eager::Tensor& token_ids);
  HeadShape head_shape() const;
  eager::Tensor all_logits(const eager::Tensor& hidden);
  eager::Tensor loss_of_loop(const eager::Tensor& logits, const eager::Tensor& labels);
  eager::Tensor loss_beside_reference(const eager::Tensor& logits,
                                      const eager::Tensor& of_reference);
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
  bool trains_all_ = true;     // but for what name_rules freeze; else adapters
  const NameFilter filter_;
  std::vector<NamedParameter>* named_ = nullptr;  // who asks for names
  std::string_view class_path_ = "model.";        // of the module that is being built
  std::int64_t layer_ = -1;
  std::string_view module_;
  bool is_layer_trained_ = false;  // some of its parameters
  bool builds_tower_ = false;
  std::deque<Linear> tower_;  // one for each of its tensors
  eager::Parameter table_;
  eager::Parameter positions_;  // rows of learned ones; undefined: none
  Linear head_;                 // where it is not the table
  Linear label_head_;
  std::deque<eager::Parameter> originals_;  // that trained copies stand in for
  std::vector<Layer> layers_;
  std::vector<PredictionModule> predictions_;  // that never run
  Norm final_norm_;
  PerLayerTable per_layer_;
  eager::Tensors per_layer_inputs_;  // of every layer
  KeysByWindow shared_keys_;
  SharedByLayer shared_;
  eager::Tensors cache_;  // which the model returns with its outputs
  eager::Divided divided_ = eager::Divided::kDtensor;
  bool adapters_are_off_ = false;
  CausalLm* reference_ = nullptr;
  bool hosts_inputs_ = false;                         // of layers that are computed again
  std::shared_ptr<eager::HostTensors> host_tensors_;  // none: saved tensors stay on the GPU
};

}  // namespace shardplan::huggingface
