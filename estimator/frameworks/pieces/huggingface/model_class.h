// How the modeling file of a family differs from Llama's where the shape of a model does not say
// so. Source: transformers 5.17 models/<family>/modeling_<family>.py.
#pragma once

#include <cstdint>
#include <string_view>

#include "estimator/frameworks/pieces/huggingface/experts.h"
#include "estimator/frameworks/pieces/huggingface/rotary.h"
#include "estimator/plan/model_parts.h"
#include "estimator/plan/model_spec.h"

namespace shardplan::huggingface {

enum class NormKind {
  kLlama,
  kGemma,
  kWide,          // the product with the weight in fp32, too (OLMo 2)
  kGemma4,        // likewise, of a weight that is cast
  kCentred,       // LayerNorm operator by operator (Cohere)
  kLayer,         // torch.nn.LayerNorm
  kPlusOneLayer,  // the same with 1 + weight, in autocast's type (Nemotron)
};
// Where norms of queries and keys stand: each behind its projection, both behind all three, or
// behind the rotary embedding. Those of all heads at once are of rows, by projection.
enum class HeadNorms { kByProjection, kBehindProjections, kBehindRotary };
enum class LigerUse { kAll, kNoRotary, kNone, kNotModelled };
// Which targets put adapters on the weights of a class's experts, one tensor for all of them (peft
// 0.21 utils/transformers_weight_conversion.py, _MOE_TARGET_MODULE_MAPPING): names of an FFN's
// layers, then on no other FFN, or only the shorthand for all linear layers, where the experts have
// names of their own (w1, w2, w3).
enum class AdaptedExperts { kNever, kByShorthand, kByFfnNames };
enum class EmbeddingScale { kNone, kInModule, kBehindModule };
// How one projection of queries, keys and values is taken apart: views of each (Phi-3), by head,
// whose parts are put together in backward (GPT-NeoX), or a view of queries and copies of keys and
// values, which of several heads are copied for every head of queries (Falcon), or of rows, whose
// gradients are put together in backward (GPT-2).
enum class QkvParts { kSliced, kSplit, kIndexed, kRows };

struct ModelClass {
  std::string_view family;  // Hugging Face's model_type
  NormKind norm = NormKind::kLlama;
  HeadNorms head_norms = HeadNorms::kByProjection;
  RotaryKind rotary = RotaryKind::kHalves;
  RouterKind router = RouterKind::kSoftmax;
  // Which of Liger's kernels take the place of operators (Liger 0.8.0 transformers/monkey_patch.py
  // MODEL_TYPE_TO_APPLY_LIGER_FN).
  LigerUse liger = LigerUse::kAll;
  // Norms of heads are Liger's before LigerKernel::kThrough082 has passed, too.
  bool always_has_liger_head_norms = false;
  // Liger's norm writes the gradient of its input over that of its output.
  bool reuses_liger_gradient = true;
  // Of the outputs of attention and FFN, and of embeddings, as published configs have it.
  double residual_dropout = 0;
  double embedding_dropout = 0;
  EmbeddingScale embedding_scale = EmbeddingScale::kNone;
  bool scales_residuals = false;
  bool scales_logits = false;
  bool widens_logits = false;   // which the loss would cast to fp32 anyway
  bool scales_queries = false;  // by their positions, behind the rotary embedding
  bool has_one_qkv = false;     // one projection of queries, keys and values
  QkvParts qkv_parts = QkvParts::kSliced;
  bool has_one_gate_up = false;  // and one of gate and up
  bool runs_shared_experts_first = false;
  // Attention's gate has a projection of its own; else the queries' makes it, too.
  bool gates_apart = false;
  // Both norms of a layer whose attention and FFN stand side by side come first, and the FFN's
  // output takes attention's up in place (Falcon).
  bool adds_ffn_in_place = false;
  // Eager attention of products in fp32, which the class has in place of
  // scaled_dot_product_attention (GPT-J); and a table of sines and cosines in every layer.
  bool attends_in_fp32 = false;
  // Eager attention of its own, with softmax in the type of its layers.
  bool has_own_eager_attention = false;
  // A table of positions beside that of tokens, whose rows are added (GPT-2).
  bool has_learned_positions = false;
  // Linear layers multiply by themselves, not by F.linear (FalconLinear, Conv1D).
  bool multiplies_itself = false;
  // A delta net's projections are two in place of four.
  bool joins_delta_projections = false;
  // Positions of images and text: cosines and sines of every sequence.
  bool has_rotary_by_sequence = false;
  // The mask of layers without a window is made whether or not there are such layers.
  bool always_has_full_mask = false;
  // There is a mask of bytes where causality alone would do, too.
  bool always_has_mask = false;
  // Layers with a window have cosines and sines of their own.
  bool has_rotary_by_window = false;
  AdaptedExperts adapted_experts = AdaptedExperts::kNever;
  // Its plan of tensor parallelism is Llama's: q, k, v, gate and up by outputs, output and down by
  // inputs, the head by outputs that are gathered (configuration_<family>.py base_model_tp_plan).
  bool has_llama_tp_plan = true;
  // Of peft's list of state-space models (tuners/tuners_utils.py, mamba_model_types).
  bool refuses_adapted_outputs = false;
  // Modules of multi-token prediction that are loaded beside the layers and never run, as published
  // configs have it (MiMo's own code).
  std::int64_t idle_predictions = 0;
  // Values have a norm without weights; queries and keys are turned each behind its own (Gemma 4).
  bool has_value_norm = false;
  // Heads that are turned have norms without weights behind; queries of other layers are scaled by
  // the logarithm of their positions (Llama 4).
  bool norms_turned_heads = false;
  // Every expert sees every token.
  bool has_dense_experts = false;
  // A number multiplies what a layer gives, in place.
  bool scales_layers = false;
  // Numbers multiply inputs of mixers, keys, gates and what FFNs give (Falcon-H1).
  bool scales_parts = false;
};

// A family without a row is Llama's.
const ModelClass& class_of(const ModelSpec& model);
// Whether its modeling file was read; a model without a family is Llama's.
bool is_known_family(const ModelSpec& model);
bool is_layer_norm(NormKind kind);
// Whether its router's product is of an input and a weight that are cast to fp32.
bool casts_router(const ModelSpec& model);

// What the classes have of parts that not every framework knows.
inline constexpr ModelParts kModelParts = {ModelPart::kLatentExperts,
                                           ModelPart::kAllHeadNorms,
                                           ModelPart::kNormsAfter,
                                           ModelPart::kParallelFfn,
                                           ModelPart::kNormsWithoutBias,
                                           ModelPart::kReluSquared,
                                           ModelPart::kRelu,
                                           ModelPart::kXielu,
                                           ModelPart::kSinks,
                                           ModelPart::kClampedSwiglu,
                                           ModelPart::kBiasedRouter,
                                           ModelPart::kBiasedExperts,
                                           ModelPart::kShortConvolution,
                                           ModelPart::kMamba2,
                                           ModelPart::kSingleParts,
                                           ModelPart::kGatedDelta,
                                           ModelPart::kKimiDelta,
                                           ModelPart::kAttentionGate,
                                           ModelPart::kMamba1,
                                           ModelPart::kParallelMixers,
                                           ModelPart::kHeadBias,
                                           ModelPart::kHeadsByLayer,
                                           ModelPart::kSharedKeys,
                                           ModelPart::kKeysAsValues,
                                           ModelPart::kFfnByLayer,
                                           ModelPart::kPerLayerEmbedding,
                                           ModelPart::kExpertsBesideDense};

// Layers whose tokens a recurrence or a convolution mixes.
bool has_recurrences(const ModelSpec& model);
inline constexpr const char* kTowerAssumption =
    "batches are text alone: the tower for pictures or sound is loaded and never called, and what "
    "a "
    "program gives it so that ranks do not wait for each other, a small picture, is not counted";
inline constexpr const char* kNamesAssumption =
    "a step of a partly trained model takes as long as that of one that is trained whole, but for "
    "the optimizer and what is reduced";

// Elements of a head that are turned.
std::int64_t rotary_width(const ModelSpec& model);

}  // namespace shardplan::huggingface
