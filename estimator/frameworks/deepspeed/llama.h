// Hugging Face's Llama and Qwen3 under eager autograd as DeepSpeed trains them: every tensor in the
// order in which it is made and freed. Source: transformers 4.57 models/llama/modeling_llama.py,
// models/qwen3/modeling_qwen3.py (the same with q_norm and k_norm between the projections and the
// rotary embedding), loss/loss_utils.py, and PyTorch 2.11's backward formulas
// (tools/autograd/derivatives.yaml).
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/frameworks/deepspeed/tape.h"
#include "estimator/plan/job.h"

namespace shardplan::deepspeed {

// Modules whose calls ZeRO-3 hooks into; all but the first four and the last two once a layer.
enum class Module {
  kCausalLm,
  kModel,
  kEmbedding,
  kRotary,
  kLayer,
  kAttentionNorm,
  kAttention,
  kQuery,
  kQueryNorm,
  kKey,
  kKeyNorm,
  kValue,
  kOutput,
  kFfnNorm,
  kFfn,
  kGate,
  kActivation,
  kUp,
  kDown,
  kFinalNorm,
  kHead,
};

// A call of a module; its parameter by its place in deepspeed_tensors, kNoParameter: it has none.
struct ModuleCall {
  static constexpr std::int64_t kNoParameter = -1;
  Module module = Module::kCausalLm;
  std::int64_t parameter = kNoParameter;
  // It is another module's: nobody knows before it has been read once.
  bool is_external = false;
};

// A ZeRO optimizer around the model's work.
class DeepspeedZero {
 public:
  virtual ~DeepspeedZero() = default;
  virtual void build() = 0;
  // `is_last`: of a step.
  virtual void begin_microbatch(bool is_last) = 0;
  virtual void end_backward() = 0;
  virtual void step() = 0;

  virtual void before_forward(const ModuleCall&) {}
  // A call that is running reads its external parameter.
  virtual void read_external(const ModuleCall&) {}
  virtual void after_forward(const ModuleCall&) {}
  virtual void before_backward(const ModuleCall&) {}
  virtual void after_backward(const ModuleCall&) {}
  // A parameter's gradient has been accumulated.
  virtual void take(std::int64_t parameter, TapeTensor gradient) = 0;
};

// Of a norm: of its input, of one fp32 value for every row of it, and for every column.
struct NormSizes {
  std::int64_t input = 0;
  std::int64_t statistics = 0;
  std::int64_t column_sums = 0;
};

// Bytes of tensors of one microbatch; letters as in block_rows.h.
struct LlamaSizes {
  LlamaSizes(const Job& job, const Plan& plan);

  std::int64_t num_layers = 0;
  bool ties_tables = false;
  bool has_grouped_heads = false;
  bool norms_heads = false;              // q_norm and k_norm
  bool divides_logits_gradient = false;  // by the microbatches
  std::int64_t token_ids = 0;            // T in int64
  std::int64_t rotary_angles = 0;        // s*d in fp32
  std::int64_t sequence = 0;             // h*T in bf16
  std::int64_t query = 0;                // a*d*T in bf16
  std::int64_t key = 0;                  // k*d*T in bf16
  NormSizes norm;                        // h*T in bf16, T, h
  NormSizes query_norm;                  // a*d*T in bf16, a*T, d
  NormSizes key_norm;                    // k*d*T in bf16, k*T, d
  std::int64_t ffn = 0;                  // f*T in bf16
  std::int64_t log_sum_exp = 0;          // a*T in fp32
  std::int64_t logits = 0;               // V*T in bf16
  std::int64_t table_workspace = 0;      // of the embedding's gradient
  std::vector<std::int64_t> parameters;  // bf16, as in deepspeed_tensors
};

// fp32 input, root of the mean square, normed value and output of a norm.
struct LlamaNorm {
  TapeTensor input, root, normed, output;
};

struct LlamaLayer {
  TapeTensor input;
  LlamaNorm norm, query_norm, key_norm;
  TapeTensor query, key, value, output, log_sum_exp;
  LlamaNorm ffn_norm;
  TapeTensor gate, silu, up, product;
};

// The model of transformers, one kernel an operator; what other kernels do otherwise is virtual.
class EagerLlama {
 public:
  EagerLlama(const LlamaSizes& sizes, bool checkpoints, eager::Tape& tape, DeepspeedZero& hooks)
      : sizes_(sizes), checkpoints_(checkpoints), tape_(tape), hooks_(hooks) {}
  virtual ~EagerLlama() = default;

  // One microbatch, to its loss and back.
  void forward();
  void backward();

 protected:
  virtual ModuleCall call(Module module, std::int64_t layer = 0) const;
  // A norm that saves its input takes it.
  virtual void norm_forward(const ModuleCall& norm, LlamaNorm& tensors, TapeTensor& input,
                            bool saves);
  virtual void turn(TapeTensor& query, TapeTensor& key, LlamaLayer& layer);
  virtual void silu_forward(std::int64_t index, LlamaLayer& layer, bool saves);
  // From the final norm's output to the loss, and back.
  virtual void loss_forward();
  virtual TapeTensor loss_backward();
  virtual TapeTensor norm_backward(const ModuleCall& norm, LlamaNorm& tensors,
                                   TapeTensor& of_output);
  // From the gradient of a turned tensor to that of its projection.
  virtual void turn_backward(TapeTensor& gradient);
  virtual void lay_as_projection(TapeTensor& gradient);
  virtual TapeTensor up_gradient(LlamaLayer& layer, TapeTensor& of_product);
  virtual TapeTensor gate_gradient(std::int64_t index, LlamaLayer& layer);

  const NormSizes& sizes_of(const ModuleCall& norm) const;
  std::int64_t parameter_bytes(const ModuleCall& call) const;
  // Of a product's weight: DeepSpeed takes it, but for the first of tied tables.
  void take_gradient(const ModuleCall& linear, TapeTensor of_weight);

  const LlamaSizes& sizes_;
  const bool checkpoints_;
  eager::Tape& tape_;
  DeepspeedZero& hooks_;
  LlamaNorm final_norm_;
  TapeTensor labels_;

 private:
  TapeTensor product(const ModuleCall& linear, std::int64_t bytes);
  void rotary();
  TapeTensor project(const ModuleCall& linear, const ModuleCall& norm, LlamaNorm& tensors,
                     bool saves);
  TapeTensor rotate(std::int64_t bytes);
  TapeTensor attention_forward(std::int64_t index, LlamaLayer& layer, bool saves);
  TapeTensor ffn_forward(std::int64_t index, LlamaLayer& layer, bool saves);
  TapeTensor layer_forward(std::int64_t index, LlamaLayer& layer, TapeTensor& input, bool saves);
  void head_forward(TapeTensor& hidden);
  TapeTensor head_product();

  // llama_backward.cpp
  TapeTensor weight_gradient(const ModuleCall& linear);
  TapeTensor product_backward(const ModuleCall& linear, std::int64_t input_bytes,
                              std::initializer_list<TapeTensor*> last_used);
  void unturned_gradient(const ModuleCall& norm, LlamaNorm& tensors, TapeTensor& gradient);
  void add_residual(TapeTensor& gradient, TapeTensor& addend, bool in_place);
  void ffn_backward(std::int64_t index, LlamaLayer& layer, TapeTensor& gradient, bool in_place);
  void attention_backward(std::int64_t index, LlamaLayer& layer, TapeTensor& gradient);
  void layer_backward(std::int64_t index, LlamaLayer& layer, TapeTensor& gradient);
  TapeTensor head_backward();
  void embedding_backward(TapeTensor& gradient);

  std::vector<LlamaLayer> layers_;
  TapeTensor token_ids_, cosines_, sines_, log_softmax_;
  TapeTensor tied_gradient_;  // of the head, until the embedding's is added
};

}  // namespace shardplan::deepspeed
