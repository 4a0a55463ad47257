#include "data/arguments/megatron_model.h"

#include <algorithm>
#include <array>

#include "data/arguments/integer_pattern.h"
#include "data/arguments/megatron.h"
#include "data/arguments/megatron_hybrid.h"
#include "data/models/config.h"
#include "data/read/json_message.h"

namespace shardplan {
namespace {

std::int64_t required(const RunArguments& arguments, const char* name, const char* other,
                      std::int64_t high = kMaxSize) {
  return arguments.required_integer(arguments.has(name) || !arguments.has(other) ? name : other, 1,
                                    high);
}

std::string found_text(const RunArguments& arguments, const char* name) {
  const std::vector<std::string> texts = arguments.texts(name);
  std::string text = "found ";
  if (texts.empty()) {
    return text + "nothing";
  }
  return text.append("\"").append(shown(texts.front(), Encoding::kUnchecked)).append("\"");
}

InputError unknown_vocabulary(const RunArguments& arguments, const char* tokenizer) {
  return arguments.error(tokenizer, found_text(arguments, tokenizer) +
                                        ", whose vocabulary is not in the arguments; expected "
                                        "--vocab-size beside it, or --set vocab-size=N");
}

// Of forks, whose tokenizers are no GPT-2's whatever --tokenizer-type says, and of other
// tokenizers.
constexpr std::array<const char*, 7> kOtherTokenizers = {
    "--patch-tokenizer-type",   "--extra-vocab-size", "--tokenizer-model",    "--tokenizer-path",
    "--tokenizer-name-or-path", "--hf-tokenizer",     "--special-tokens-file"};

// GPT2BPETokenizer has the tokens of its vocabulary file: those of GPT-2's published one, unless
// another file or tokenizer is named. Its plain name, which is GPT-2's and others', a variable and
// a <placeholder> say nothing.
std::int64_t gpt2_vocabulary(const RunArguments& arguments, std::vector<std::string>& notes) {
  constexpr std::int64_t kGpt2Tokens = 50257;  // huggingface.co/openai-community/gpt2 vocab.json
  const std::string file = arguments.text_or("--vocab-file", "");
  const bool is_gpt2 = in_lower_case(file).find("gpt2") != std::string::npos;
  const bool is_open = file.empty() || file.find_first_of("$<") != std::string::npos ||
                       file.substr(file.rfind('/') + 1) == "vocab.json";
  const auto* const other =
      std::ranges::find_if(kOtherTokenizers, [&](const char* name) { return arguments.has(name); });
  if (other != kOtherTokenizers.end() || (!is_gpt2 && !is_open)) {
    throw unknown_vocabulary(arguments, other == kOtherTokenizers.end() ? "--vocab-file" : *other);
  }
  if (!is_gpt2) {
    notes.emplace_back(arguments
                           .error("--vocab-file", found_text(arguments, "--vocab-file") +
                                                      ", took GPT-2's " +
                                                      std::to_string(kGpt2Tokens) +
                                                      " tokens; --set vocab-size=N says otherwise")
                           .what());
  }
  return kGpt2Tokens;
}

// Llama2Tokenizer reads any SentencePiece model; that of Llama 2, which Mistral and Mixtral have in
// the same size, is what its name says.
std::int64_t llama2_vocabulary(const RunArguments& arguments, std::vector<std::string>& notes) {
  constexpr std::int64_t kTokens = 32000;  // huggingface.co/meta-llama/Llama-2-7b-hf config.json
  notes.emplace_back(
      arguments
          .error("--tokenizer-type", "found \"Llama2Tokenizer\", took Llama 2's " +
                                         std::to_string(kTokens) +
                                         " tokens; --set vocab-size=N says otherwise")
          .what());
  return kTokens;
}

// The tokenizer's vocabulary; padding is the profile's. training/tokenizer/tokenizer.py.
std::int64_t vocabulary(const RunArguments& arguments, std::vector<std::string>& notes) {
  for (const char* stated : {"--padded-vocab-size", "--vocab-size"}) {
    if (const std::optional<std::int64_t> size = arguments.integer(stated, 1, kMaxSize)) {
      const bool adds_end = stated == std::string_view("--vocab-size") &&
                            arguments.text_or("--tokenizer-type", "") == "NullTokenizer";
      return adds_end ? *size + 1 : *size;  // and an end-of-document token
    }
  }
  if (!why_refused(arguments).empty()) {
    notes.emplace_back(
        arguments
            .error("--vocab-size", "found nothing: the parameters of the model are not counted")
            .what());
    return 0;  // of no run that is estimated
  }
  // pretrain_gpt.py sets this default.
  const std::string tokenizer = arguments.text_or("--tokenizer-type", "GPT2BPETokenizer");
  if (tokenizer == "GPT2BPETokenizer") {
    return gpt2_vocabulary(arguments, notes);
  }
  if (tokenizer == "Llama2Tokenizer") {
    return llama2_vocabulary(arguments, notes);
  }
  throw unknown_vocabulary(arguments, "--tokenizer-type");
}

void read_widths(const RunArguments& arguments, ModelSpec& model) {
  model.hidden = required(arguments, "--hidden-size", "--hidden-size");
  model.num_heads = required(arguments, "--num-attention-heads", "--num-attention-heads");
  model.gated_ffn = arguments.has("--swiglu") || arguments.has("--quick-geglu");
  // Two thirds of 4h with a gate, which has three products instead of two.
  const std::int64_t gated_default = model.hidden * 8 / 3 / 64 * 64;
  model.ffn = arguments.integer_or("--ffn-hidden-size",
                                   arguments.has("--swiglu") ? gated_default : 4 * model.hidden, 1,
                                   kMaxSize);
  const std::optional<std::int64_t> channels = arguments.integer("--kv-channels", 1, kMaxSize);
  if (!channels && model.hidden % model.num_heads != 0) {
    throw arguments.error("--hidden-size", "found " + std::to_string(model.hidden) +
                                               ", expected a multiple of --num-attention-heads " +
                                               std::to_string(model.num_heads));
  }
  if (arguments.has("--quick-geglu") && arguments.has("--activation-func-clamp-value")) {
    model.activation = Activation::kClampedSwiglu;
  }
  model.head_dim = channels.value_or(model.hidden / model.num_heads);
  model.num_kv_heads = arguments.has("--group-query-attention")
                           ? arguments.integer_or("--num-query-groups", 1, 1, kMaxSize)
                           : model.num_heads;
}

void read_norms_and_biases(const RunArguments& arguments, ModelSpec& model) {
  model.layer_norm =
      arguments.word_or("--normalization", "LayerNorm", {"LayerNorm", "RMSNorm"}) == "LayerNorm";
  const bool biases = !arguments.has("--disable-bias-linear");
  const bool is_mla = model.is_mla();
  // Of multi-latent attention it norms what is compressed, not heads (core/models/gpt/
  // gpt_layer_specs.py, linear_q_up_proj and linear_kv_up_proj).
  model.qk_norm = arguments.has("--qk-layernorm") && !is_mla;
  model.attention_output_bias = biases;
  model.ffn_bias = biases;
  // The projections of multi-latent attention have none (core/transformer/
  // multi_latent_attention.py).
  model.qkv_bias = (biases || arguments.has("--add-qkv-bias")) && !is_mla;
}

// Positions of time, height and width: core/models/gpt/gpt_model.py.
void note_images(const RunArguments& arguments, std::vector<std::string>& notes) {
  const char* const kind = "--position-embedding-type";
  const char* const section = "--mrope-section";
  if (arguments.has(section) || arguments.text_or(kind, "") == "mrope") {
    notes.emplace_back(arguments
                           .error(arguments.has(section) ? section : kind,
                                  "found positions of text and images: counts the text model only, "
                                  "without the vision tower")
                           .what());
  }
}

void read_positions(const RunArguments& arguments, ModelSpec& model) {
  const std::string kind =
      arguments.has("--use-rotary-position-embeddings")
          ? "rope"
          : arguments.word_or("--position-embedding-type", "learned_absolute",
                              {"learned_absolute", "rope", "none", "mrope", "relative"});
  if (arguments.has("--no-position-embedding") && kind != "rope") {
    throw arguments.error("--no-position-embedding",
                          "found --position-embedding-type " + kind + ", expected rope beside it");
  }
  if (kind == "learned_absolute") {
    model.learned_positions = required(arguments, "--max-position-embeddings", "--seq-length");
  }
}

// Layers that an argument marks: the first and every n-th behind it with 1, every n-th with 0
// (numbered from 1), or as a list of 0 and 1 says.
enum class Marks { kFirstOfEach, kLastOfEachWith0 };

std::vector<std::int64_t> layer_pattern(const RunArguments& arguments, const char* name,
                                        std::int64_t num_layers, Marks marks) {
  const std::string text = arguments.text_or(name, "1");
  std::vector<std::int64_t> pattern;
  if (text.find('[') != std::string::npos) {
    pattern = integer_pattern(text, arguments.place(name));
  } else {
    const std::int64_t period = arguments.integer_or(name, 1, 1, kMaxCount);
    for (std::int64_t i = 0; i < num_layers; ++i) {
      pattern.push_back(marks == Marks::kFirstOfEach ? (i % period == 0 ? 1 : 0)
                                                     : ((i + 1) % period == 0 ? 0 : 1));
    }
  }
  if (static_cast<std::int64_t>(pattern.size()) != num_layers) {
    throw arguments.error(name, "found a list of " + std::to_string(pattern.size()) +
                                    ", expected one entry for each of the " +
                                    std::to_string(num_layers) + " layers");
  }
  return pattern;
}

void read_experts(const RunArguments& arguments, ModelSpec& model) {
  MoeSpec& moe = model.moe;
  moe.num_experts = arguments.integer_or("--num-experts", 0, 0, kMaxCount);
  if (moe.num_experts == 0) {
    if (arguments.has("--moe-latent-size")) {  // training/arguments.py, validate_args
      throw arguments.error("--moe-latent-size",
                            "found it without --num-experts, expected experts beside it");
    }
    return;
  }
  moe.topk = arguments.integer_or("--moe-router-topk", 2, 1, kMaxCount);
  moe.latent = arguments.integer_or("--moe-latent-size", 0, 1, kMaxSize);
  moe.num_groups = arguments.integer_or("--moe-router-num-groups", 1, 1, moe.num_experts);
  moe.topk_groups =
      arguments.integer_or("--moe-router-group-topk", moe.num_groups, 1, moe.num_groups);
  moe.expert_ffn = arguments.integer_or("--moe-ffn-hidden-size", model.ffn, 1, kMaxSize);
  moe.shared_ffn = arguments.integer_or("--moe-shared-expert-intermediate-size", 0, 0, kMaxSize);
  moe.shared_gate = arguments.has("--moe-shared-expert-gate");
  moe.router_bias = arguments.has("--moe-router-enable-expert-bias");
  // core/transformer/moe/router.py and experts.py: add_bias_linear.
  moe.biased_router = !arguments.has("--disable-bias-linear");
  moe.biased_experts = moe.biased_router;
  const std::vector<std::int64_t> pattern =
      layer_pattern(arguments, "--moe-layer-freq", model.num_layers(), Marks::kFirstOfEach);
  for (std::size_t i = 0; i < pattern.size(); ++i) { model.layers[i].is_moe = pattern[i] != 0; }
}

void read_mla(const RunArguments& arguments, ModelSpec& model) {
  if (!arguments.has("--multi-latent-attention")) {
    return;
  }
  if (arguments.has("--group-query-attention")) {  // training/arguments.py:1266
    throw arguments.error("--group-query-attention",
                          "found --multi-latent-attention beside it, expected one of them");
  }
  model.attention = AttentionKind::kMla;
  model.mla.q_lora_rank = arguments.integer_or("--q-lora-rank", 0, 1, kMaxSize);
  model.mla.kv_lora_rank = arguments.integer_or("--kv-lora-rank", 32, 1, kMaxSize);
  model.mla.qk_nope_head_dim = arguments.integer_or("--qk-head-dim", 128, 1, kMaxSize);
  model.mla.qk_rope_head_dim = arguments.integer_or("--qk-pos-emb-head-dim", 64, 1, kMaxSize);
  model.mla.v_head_dim = arguments.integer_or("--v-head-dim", 128, 1, kMaxSize);
}

// "(128,0)" or "128,0": keys before and after a query.
void read_windows(const RunArguments& arguments, ModelSpec& model) {
  std::string text = arguments.text_or("--window-size", "");
  std::erase_if(text, [](char letter) { return letter == '(' || letter == ')' || letter == ' '; });
  if (text.empty()) {
    return;
  }
  const std::vector<std::int64_t> window =
      integer_pattern("[" + text + "]", arguments.place("--window-size"));
  // core/transformer/utils.py is_layer_window_attention: an n-th layer is skipped.
  std::vector<std::int64_t> windowed(model.layers.size(), 1);
  if (arguments.has("--window-attn-skip-freq")) {
    windowed = layer_pattern(arguments, "--window-attn-skip-freq", model.num_layers(),
                             Marks::kLastOfEachWith0);
  }
  for (std::size_t i = 0; i < windowed.size(); ++i) {
    model.layers[i].attention_window = windowed[i] != 0 ? window.front() + 1 : 0;
  }
}

// core/models/gpt/experimental_attention_variant_module_specs.py, get_linear_attention_pattern: all
// but every n-th layer, or a list of 0 and 1; core/transformer/transformer_config.py has the sizes.
void read_delta_nets(const RunArguments& arguments, ModelSpec& model) {
  if (arguments.has("--attention-output-gate")) {
    model.attention_gate = AttentionGate::kPerElement;
  }
  if (arguments.text_or("--experimental-attention-variant", "") != "gated_delta_net") {
    return;
  }
  const char* const which = "--linear-attention-freq";
  if (!arguments.has(which)) {
    throw arguments.error(which, "found nothing, expected which layers are gated delta nets, as 4");
  }
  DeltaSpec& delta = model.delta;
  delta.key_heads = arguments.integer_or("--linear-num-key-heads", 16, 1, kMaxCount);
  delta.value_heads = arguments.integer_or("--linear-num-value-heads", 32, 1, kMaxCount);
  delta.key_head_dim = arguments.integer_or("--linear-key-head-dim", 128, 1, kMaxSize);
  delta.value_head_dim = arguments.integer_or("--linear-value-head-dim", 128, 1, kMaxSize);
  delta.convolution = arguments.integer_or("--linear-conv-kernel-dim", 4, 1, kMaxSize);
  const std::vector<std::int64_t> pattern =
      layer_pattern(arguments, which, model.num_layers(), Marks::kLastOfEachWith0);
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    model.layers[i].mixer = pattern[i] != 0 ? MixerKind::kGatedDelta : MixerKind::kAttention;
  }
}

// core/transformer/experimental_attention_variant/dsa.py: every layer has an indexer.
void read_indexer(const RunArguments& arguments, ModelSpec& model) {
  if (arguments.text_or("--experimental-attention-variant", "") != "dsa") {
    return;
  }
  if (!model.is_mla()) {
    throw arguments.error("--experimental-attention-variant",
                          "found dsa, expected --multi-latent-attention beside it");
  }
  model.indexer = {.num_heads = arguments.required_integer("--dsa-indexer-n-heads", 1, kMaxCount),
                   .head_dim = arguments.required_integer("--dsa-indexer-head-dim", 1, kMaxSize),
                   .topk = arguments.required_integer("--dsa-indexer-topk", 1, kMaxSize)};
  for (LayerSpec& layer : model.layers) { layer.has_indexer = true; }
}

// core/transformer/dot_product_attention.py: a trained score a head in every layer.
void read_sinks(const RunArguments& arguments, ModelSpec& model) {
  const bool has_sinks = arguments.text_or("--softmax-type", "vanilla") == "learnable";
  for (LayerSpec& layer : model.layers) { layer.has_sinks = has_sinks; }
}

}  // namespace

std::string why_refused(const RunArguments& arguments) {
  const std::string softmax = arguments.text_or("--softmax-type", "vanilla");
  if (softmax != "vanilla" && softmax != "learnable") {
    return "unsupported: --softmax-type " + softmax + ": another softmax than vanilla or learnable";
  }
  const std::string tokenizer = arguments.text_or("--tokenizer-type", "");
  if (tokenizer.starts_with("BertWordPiece") || tokenizer == "MultimodalTokenizer") {
    return "unsupported: --tokenizer-type " + tokenizer + ": another model than a GPT decoder";
  }
  const std::string variant =
      arguments.text_or("--experimental-attention-variant", "gated_delta_net");
  if (variant != "gated_delta_net" && variant != "dsa") {
    return "unsupported: --experimental-attention-variant " + variant +
           ": an attention that is not counted; gated_delta_net and dsa are";
  }
  const std::string hybrid = why_hybrid_refused(arguments);
  return hybrid.empty() ? arguments.first_refused() : hybrid;
}

ModelSpec megatron_model(const RunArguments& arguments, std::vector<std::string>& notes) {
  ModelSpec model;
  model.name = "of the arguments";
  model.family = "gpt";
  const std::optional<std::string> pattern = hybrid_pattern(arguments);
  const std::int64_t num_layers =
      pattern ? std::ssize(*pattern)
              : required(arguments, "--num-layers", "--encoder-num-layers", kMaxLayers);
  model.layers.resize(static_cast<std::size_t>(num_layers));
  read_widths(arguments, model);
  read_mla(arguments, model);
  read_norms_and_biases(arguments, model);
  note_images(arguments, notes);
  read_positions(arguments, model);
  read_experts(arguments, model);
  read_windows(arguments, model);
  read_sinks(arguments, model);
  read_delta_nets(arguments, model);
  read_indexer(arguments, model);
  if (pattern) {
    read_hybrid(arguments, *pattern, model);
    note_later_pattern(arguments, notes);
  }
  model.vocab = vocabulary(arguments, notes);
  model.tied_embeddings = !arguments.has("--untie-embeddings-and-output-weights");
  model.num_mtp_layers = arguments.integer_or("--mtp-num-layers", 0, 0, kMaxMtpLayers);
  return model;
}

// ms-swift 3602360 swift/arguments/base_args/base_args.py, megatron/arguments/
// megatron_base_args.py.
std::int64_t read_megatron_length(const RunArguments& arguments, bool names_model,
                                  RunReading& run) {
  for (const char* const name : {"--seq-length", "--encoder-seq-length"}) {
    if (const std::optional<std::int64_t> length = arguments.integer(name, 1, kMaxSize)) {
      return *length;
    }
  }
  const std::int64_t positions = run.job.model.max_sequence_length;
  if (!names_model || positions == 0) {
    throw arguments.error("--seq-length", "found nothing, expected an integer");
  }
  run.notes.emplace_back(
      arguments
          .error("--max-length", "found nothing, took " + std::to_string(positions) +
                                     ", the positions of " + run.job.model.name +
                                     ", which bound a sample; --sequence-length N of the "
                                     "longest says otherwise")
          .what());
  return positions;
}

}  // namespace shardplan
