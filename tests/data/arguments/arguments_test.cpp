#include "data/arguments/arguments.h"
#include "data/arguments/integer_pattern.h"
#include "data/arguments/run_settings.h"
#include "data/read/case_line.h"
#include "estimator/answer/why_invalid.h"
#include "tests/data/message_of.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

namespace shardplan {
namespace {

// The arguments of Megatron-LM's gpt3_7b_tp1_pp4_memory_speed, as far as they matter here.
constexpr std::string_view kGpt7b = R"({"--num-layers": 32, "--hidden-size": 4096,
  "--num-attention-heads": 32, "--group-query-attention": true, "--num-query-groups": 8,
  "--untie-embeddings-and-output-weights": true, "--log-throughput": true,
  "--micro-batch-size": 1, "--global-batch-size": 8, "--seq-length": 8192,
  "--max-position-embeddings": 8192, "--tokenizer-type": "NullTokenizer", "--vocab-size": 131073,
  "--weight-decay": "1e-2", "--transformer-impl": "transformer_engine",
  "--tensor-model-parallel-size": 1, "--pipeline-model-parallel-size": 4,
  "--num-layers-per-virtual-pipeline-stage": 1, "--use-distributed-optimizer": true,
  "--overlap-grad-reduce": true, "--overlap-param-gather": true, "--deterministic-mode": true,
  "--no-gradient-accumulation-fusion": true, "--bf16": true, "--async-save": true)";

RunReading reading_of(const std::string& arguments, const std::string& environment = "{}") {
  const Library library;
  const std::string text =
      R"({"arguments": )" + arguments + R"(, "environment": )" + environment + "}";
  const JsonValue value = parse_json(text, "run.json");
  return read_run(run_settings(value, "run.json"), library.cluster("1x8-h100"), library);
}

RunReading gpt7b_with(const std::string& more, const std::string& environment = "{}") {
  return reading_of(std::string(kGpt7b) + more + "}", environment);
}

const SettingUse& use_named(const RunReading& run, std::string_view name) {
  const auto found = std::ranges::find(run.uses, name, &SettingUse::name);
  REQUIRE(found != run.uses.end());
  return *found;
}

}  // namespace

TEST_CASE("Megatron arguments become the model that Megatron builds from them") {
  const RunReading run = gpt7b_with("");
  const ModelSpec& model = run.job.model;
  CHECK(model.num_layers() == 32);
  CHECK(model.ffn == 4 * 4096);  // no --swiglu
  CHECK_FALSE(model.gated_ffn);
  CHECK(model.head_dim == 128);
  CHECK(model.num_kv_heads == 8);
  CHECK(model.vocab == 131074);  // NullTokenizer adds an end-of-document token
  CHECK(model.layer_norm);       // the default
  CHECK(model.learned_positions == 8192);
  CHECK(model.qkv_bias);
  CHECK_FALSE(model.tied_embeddings);
  CHECK(run.job.hidden_dropout == 0.1);
  CHECK(run.framework == "megatron");
}

TEST_CASE("the older word for no table of positions is taken where Megatron-LM takes it") {
  const RunReading run =
      gpt7b_with(R"(, "--no-position-embedding": true, "--position-embedding-type": "rope")");
  CHECK(run.unsupported.empty());
  CHECK(run.job.model.learned_positions == 0);
  CHECK(message_of([] {
          gpt7b_with(R"(, "--no-position-embedding": true)");
        }).find("found --position-embedding-type learned_absolute, expected rope") !=
        std::string::npos);
}

TEST_CASE("positions of text and images are counted as those of the text, and said") {
  const auto notes = [](const std::string& json) { return gpt7b_with(", " + json).notes; };
  CHECK(notes(R"("--position-embedding-type": "rope")").empty());
  for (const std::string json :
       {R"("--position-embedding-type": "mrope")",
        R"("--use-rotary-position-embeddings": true, "--mrope-section": [24, 20, 20])"}) {
    REQUIRE(notes(json).size() == 1);
    CHECK(notes(json)[0].ends_with(
        "found positions of text and images: counts the text model only, without the vision "
        "tower"));
  }
}

TEST_CASE("switches with a --no form take no value") {
  const RunReading run = gpt7b_with(R"(, "--rl-use-sequence-packing": true)");
  CHECK(use_named(run, "--rl-use-sequence-packing").effect == SettingEffect::kNone);
}

TEST_CASE("a variable that nothing sets, behind all values of an argument, is named and left out") {
  const Library library;
  const JsonValue value = parse_json(
      R"({"arguments": ["--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4",
          "--seq-length", "64", "--max-position-embeddings", "64", "--micro-batch-size", "1",
          "--bf16", "$EXTRA_ARGS"]})",
      "run.json");
  const RunReading run =
      read_run(run_settings(value, "run.json"), library.cluster("1x8-h100"), library);
  CHECK(run.plan.precision == Precision::kBf16);
  CHECK(use_named(run, "$EXTRA_ARGS").effect == SettingEffect::kUnknown);
}

TEST_CASE("an absent argument is asked for by file and name; a vocabulary only where it matters") {
  CHECK(message_of([] { reading_of(R"({"--hidden-size": 64})"); }) ==
        "run.json: --num-layers: found nothing, expected an integer");
  const std::string tokenizer =
      R"({"--num-layers": 2, "--hidden-size": 64, "--num-attention-heads": 4, "--seq-length": 64,
          "--max-position-embeddings": 64, "--micro-batch-size": 1, "--bf16": true, "--tokenizer-type": )";
  CHECK(message_of([&] {
          reading_of(tokenizer + R"("HuggingFaceTokenizer"})");
        }).find("expected --vocab-size beside it, or --set vocab-size=N") != std::string::npos);
  const RunReading refused =
      reading_of(tokenizer + R"("HuggingFaceTokenizer", "--spec": "mamba"})");
  CHECK(refused.unsupported.starts_with("unsupported: --spec"));
  CHECK(refused.job.model.vocab == 0);
  REQUIRE(refused.notes.size() == 1);
  CHECK(refused.notes[0] ==
        "run.json: --vocab-size: found nothing: the parameters of the model are not counted");
  CHECK(reading_of(tokenizer + R"("BertWordPieceCase"})")
            .unsupported.starts_with("unsupported: --tokenizer-type BertWordPieceCase: another"));
}

// core/tokenizers/text/libraries: the GPT-2 tokenizer has as many tokens as its vocabulary file.
TEST_CASE("a vocabulary is stated, of GPT-2's file, or asked for") {
  const std::string sizes =
      R"({"--num-layers": 2, "--hidden-size": 64, "--num-attention-heads": 4, "--seq-length": 64,
          "--max-position-embeddings": 64, "--micro-batch-size": 1, "--bf16": true)";
  const std::string gpt2 = sizes + R"(, "--tokenizer-type": "GPT2BPETokenizer")";
  const auto vocab = [](const std::string& json) { return reading_of(json + "}").job.model.vocab; };
  const auto notes = [](const std::string& json) { return reading_of(json + "}").notes; };
  const auto asks = [](const std::string& json) {
    return message_of([&] {
             reading_of(json + "}");
           }).find("expected --vocab-size beside it, or --set vocab-size=N") != std::string::npos;
  };
  const std::string llama2 = sizes + R"(, "--tokenizer-type": "Llama2Tokenizer")";
  CHECK(vocab(llama2) == 32000);
  CHECK(notes(llama2).size() == 1);
  CHECK(vocab(llama2 + R"(, "--vocab-size": 1000)") == 1000);
  CHECK(asks(sizes + R"(, "--tokenizer-type": "HuggingFaceTokenizer")"));
  for (const std::string& start : {sizes, gpt2}) {
    CHECK(vocab(start + R"(, "--vocab-size": 1000)") == 1000);
    CHECK(notes(start + R"(, "--vocab-size": 1000)").empty());
    CHECK(vocab(start + R"(, "--vocab-file": "a/gpt2-vocab.json")") == 50257);
    CHECK(notes(start + R"(, "--vocab-file": "a/gpt2-vocab.json")").empty());
    CHECK(asks(start + R"(, "--vocab-file": "a/nordic_131072.json")"));
    CHECK(notes(start + R"(, "--vocab-file": "a/vocab.json")").size() == 1);  // may be GPT-2's
    CHECK(vocab(start + R"(, "--vocab-file": "b/vocab.json", "--vocab-size": 9)") == 9);
    CHECK(asks(start + R"(, "--patch-tokenizer-type": "LLamaTokenizer")"));
    CHECK(asks(start + R"(, "--extra-vocab-size": 421)"));
    CHECK(vocab(start) == 50257);
    REQUIRE(notes(start).size() == 1);
    CHECK(notes(start)[0] ==
          "run.json: --vocab-file: found nothing, took GPT-2's 50257 tokens; --set vocab-size=N "
          "says otherwise");
    CHECK(notes(start + R"(, "--vocab-file": "$2")").size() == 1);  // of a name that nothing sets
  }
}

TEST_CASE("Megatron arguments become the plan that Megatron runs") {
  const RunReading run = gpt7b_with("");
  CHECK(run.plan.pp == 4);
  CHECK(run.plan.vpp == 8);  // 32 layers / 4 stages / 1 layer
  CHECK(run.plan.schedule == Schedule::kInterleaved1F1B);
  CHECK(run.plan.zero == 1);
  CHECK(run.plan.etp == 1);
  CHECK(run.plan.grad_dtype == DType::kFp32);  // --bf16 implies it
  CHECK(run.job.global_batch == 8);
  CHECK(run.job.profile.overlap_param_gather);
  CHECK_FALSE(run.job.profile.gradient_accumulation_fusion);
  CHECK(run.job.profile.deterministic_attention);
  CHECK(run.job.profile.cross_entropy == CrossEntropyKind::kUnfused);
}

// training/arguments.py:573-585. Without an interleaved schedule the switch says nothing.
TEST_CASE("stages exchange beside the work of an interleaved schedule unless told not to") {
  const auto overlaps = [](const char* more) {
    return gpt7b_with(more).job.profile.overlap_p2p_comm;
  };
  CHECK(overlaps(""));
  CHECK_FALSE(overlaps(R"(, "--no-overlap-p2p-communication": true)"));
  std::string plain(kGpt7b);
  const std::string chunks = R"("--num-layers-per-virtual-pipeline-stage": 1, )";
  plain.erase(plain.find(chunks), chunks.size());
  CHECK(reading_of(plain + "}").job.profile.overlap_p2p_comm);
}

TEST_CASE("a gated FFN has two thirds of 4h in multiples of 64") {
  const RunReading run = gpt7b_with(R"(, "--swiglu": true)");
  CHECK(run.job.model.gated_ffn);
  CHECK(run.job.model.ffn == 10880);  // int(4 * 4096 * 2 / 3 / 64) * 64
  CHECK(gpt7b_with(R"(, "--ffn-hidden-size": 14336)").job.model.ffn == 14336);
}

TEST_CASE("every setting is said to be read, without effect, not counted, refused or unknown") {
  const RunReading run = gpt7b_with(R"(, "--perform-rl-step": true, "--my-own": 3)");
  CHECK(use_named(run, "--hidden-size").effect == SettingEffect::kRead);
  CHECK(use_named(run, "--weight-decay").effect == SettingEffect::kNone);
  CHECK(use_named(run, "--async-save").effect == SettingEffect::kNotCounted);
  CHECK(use_named(run, "--perform-rl-step").effect == SettingEffect::kRefused);
  CHECK(use_named(run, "--my-own").effect == SettingEffect::kUnknown);
  CHECK(run.unsupported.starts_with("unsupported: --perform-rl-step"));
}

TEST_CASE("overlapped tensor-parallel communication is read, with the buffers that it keeps") {
  const char* const overlap = R"(, "--tp-comm-overlap": true, "--sequence-parallel": true)";
  const RunReading run = gpt7b_with(overlap);
  CHECK(use_named(run, "--tp-comm-overlap").effect == SettingEffect::kRead);
  CHECK(run.job.profile.tp_overlap == TpOverlap::kPieces);
  CHECK(run.unsupported.empty());
}

TEST_CASE("a refused argument with a harmless value is no reason to refuse") {
  CHECK(gpt7b_with(R"(, "--cpu-offloading-num-layers": 0)").unsupported.empty());
  CHECK_FALSE(gpt7b_with(R"(, "--cpu-offloading-num-layers": 2)").unsupported.empty());
}

TEST_CASE("CUDA graphs are read with their scope") {
  const auto graphs = [](const std::string& json) {
    const RunReading run = gpt7b_with(", " + json);
    CHECK(run.unsupported.empty());
    return run.job.profile.cuda_graphs;
  };
  const std::string engine = R"("--cuda-graph-impl": "transformer_engine")";
  CHECK(graphs(R"("--cuda-graph-impl": "none")") == CudaGraphs::kNone);
  CHECK(graphs(R"("--cuda-graph-impl": "local")") == CudaGraphs::kLayers);
  CHECK(graphs(R"("--enable-cuda-graph": true)") == CudaGraphs::kLayers);
  CHECK(graphs(R"("--external-cuda-graph": true)") == CudaGraphs::kLayers);
  CHECK(graphs(R"("--cuda-graph-impl": "local", "--cuda-graph-scope": "full_iteration")") ==
        CudaGraphs::kIteration);
  CHECK(graphs(engine) == CudaGraphs::kLayers);
  CHECK(graphs(engine + R"(, "--cuda-graph-scope": ["attn", "mlp"])") == CudaGraphs::kLayers);
  CHECK(graphs(engine + R"(, "--cuda-graph-scope": ["attn", "moe_router", "moe_preprocess"])") ==
        CudaGraphs::kAttention);
  CHECK(graphs(engine + R"(, "--cuda-graph-scope": ["moe_router", "moe_preprocess"])") ==
        CudaGraphs::kRouter);
  CHECK(graphs(engine + R"(, "--cuda-graph-scope": "mlp")") == CudaGraphs::kNone);
}

TEST_CASE("core's own layers have one attention, and its softmax is what the arguments say") {
  const std::string tiny = R"({"--num-layers": 2, "--hidden-size": 64, "--num-attention-heads": 4,
      "--seq-length": 64, "--max-position-embeddings": 64, "--micro-batch-size": 1,
      "--vocab-size": 128, "--bf16": true, "--transformer-impl": "local")";
  const RunReading run = reading_of(tiny + R"(, "--attention-backend": "unfused"})");
  CHECK(run.unsupported.empty());
  CHECK(run.framework == "megatron");
  CHECK(run.job.profile.attention_backend == AttentionBackend::kLocal);
  CHECK(run.job.profile.masked_softmax_fusion);
  CHECK_FALSE(run.job.profile.attention_softmax_in_fp32);
  const RunReading torch = reading_of(tiny + R"(, "--no-masked-softmax-fusion": true,
                           "--apply-query-key-layer-scaling": true})");
  CHECK_FALSE(torch.job.profile.masked_softmax_fusion);
  CHECK(torch.job.profile.attention_softmax_in_fp32);
  CHECK(gpt7b_with(R"(, "--attention-backend": "local")").unsupported.find("--transformer-impl") !=
        std::string::npos);
}

TEST_CASE("a deferral without a limit is one of all microbatches") {
  const auto deferred = [](const char* more) {
    return gpt7b_with(more).job.profile.deferred_embedding_wgrads;
  };
  CHECK(deferred("") == 0);
  CHECK(deferred(R"(, "--wgrad-deferral-limit": 2)") == 0);
  CHECK(deferred(R"(, "--defer-embedding-wgrad-compute": true, "--wgrad-deferral-limit": 2)") == 2);
  CHECK(deferred(R"(, "--defer-embedding-wgrad-compute": true)") == 1 << 20);
}

TEST_CASE("gradients are in the type of --main-grads-dtype, as Megatron-LM's checks leave it") {
  const std::string aware = R"(, "--use-precision-aware-optimizer": true)";
  CHECK(gpt7b_with(aware).plan.grad_dtype == DType::kFp32);
  CHECK(gpt7b_with(aware + R"(, "--main-grads-dtype": "bf16")").plan.grad_dtype == DType::kBf16);
  CHECK(message_of([&] {
          gpt7b_with(aware + R"(, "--main-grads-dtype": "bf16",
                              "--accumulate-allreduce-grads-in-fp32": true)");
        }).find("--main-grads-dtype: found another type than fp32 beside") != std::string::npos);
}

TEST_CASE("gradients under --fp16 are fp16, or fp32 where they are to be added up so") {
  const auto grad_dtype = [](const std::string& more) {
    std::string run = std::string(kGpt7b) + more + "}";
    run.replace(run.find("--bf16"), 6, "--fp16");
    return reading_of(run, "{}").plan.grad_dtype;
  };
  CHECK(grad_dtype("") == DType::kFp16);
  CHECK(grad_dtype(R"(, "--accumulate-allreduce-grads-in-fp32": true)") == DType::kFp32);
}

TEST_CASE("types of the optimizer without the optimizer that takes them are refused") {
  CHECK(message_of([] {
          gpt7b_with(R"(, "--exp-avg-dtype": "bf16")");
        }).find("expected --use-precision-aware-optimizer beside it") != std::string::npos);
  CHECK(gpt7b_with(R"(, "--exp-avg-dtype": "fp32")").unsupported.empty());
}

TEST_CASE("the precision-aware optimizer keeps the low half of a master beside a bf16 weight") {
  const std::string aware = R"(, "--use-precision-aware-optimizer": true)";
  CHECK(gpt7b_with("").plan.master_dtype == DType::kFp32);
  CHECK(gpt7b_with(aware).plan.master_dtype == DType::kBf16);  // 2 bytes, as its row says
  CHECK(gpt7b_with(aware + R"(, "--main-params-dtype": "fp16")").plan.master_dtype == DType::kFp16);
  // Where Megatron-LM keeps the masters, they are whole.
  CHECK(gpt7b_with(aware + R"(, "--optimizer-cpu-offload": true)").plan.master_dtype ==
        DType::kFp32);
  CHECK(gpt7b_with(aware + R"(, "--fp8-format": "hybrid", "--fp8-recipe": "tensorwise")")
            .plan.master_dtype == DType::kFp32);
}

TEST_CASE("fp8 weights follow --fp8-recipe and --fp8-param-gather") {
  const std::string fp8 = R"(, "--fp8-format": "hybrid")";
  CHECK(gpt7b_with(fp8).job.profile.fp8_recipe == Fp8Recipe::kDelayed);
  CHECK_FALSE(gpt7b_with(fp8).job.profile.fp8_param_gather);
  const std::string mxfp8 = fp8 + R"(, "--fp8-recipe": "mxfp8")";
  CHECK(gpt7b_with(mxfp8).unsupported.empty());
  CHECK(gpt7b_with(mxfp8).job.profile.fp8_recipe == Fp8Recipe::kMxfp8);
  const std::string gather = R"(, "--fp8-param-gather": true)";
  const RunReading delayed = gpt7b_with(fp8 + gather);
  CHECK(delayed.unsupported.empty());
  CHECK(delayed.job.profile.fp8_param_gather);
  CHECK(gpt7b_with(fp8 + R"(, "--fp8-recipe": "custom")").unsupported.find("custom") !=
        std::string::npos);
  // Transformer Engine cannot move an mxfp8 weight into a buffer.
  CHECK(message_of([&] { gpt7b_with(mxfp8 + gather); })
            .find("--fp8-param-gather: found --fp8-recipe mxfp8 without "
                  "--reuse-grad-buf-for-mxfp8-param-ag") != std::string::npos);
  const std::string reuse = R"(, "--reuse-grad-buf-for-mxfp8-param-ag": true)";
  CHECK(gpt7b_with(mxfp8 + gather + reuse).job.profile.fp8_param_gather);
  CHECK(message_of([&] {
          gpt7b_with(mxfp8 + reuse);
        }).find("found no --fp8-param-gather, expected it beside this") != std::string::npos);
  CHECK(message_of([&] {
          gpt7b_with(fp8 + gather + reuse);
        }).find("found --fp8-recipe delayed, expected mxfp8") != std::string::npos);
}

TEST_CASE("Muon is read, divided or not, and refused where it runs otherwise than described") {
  const auto with = [](const std::string& more) {
    return gpt7b_with(R"(, "--optimizer": "dist_muon")" + more);
  };
  CHECK(with("").job.optimizer == OptimizerKind::kDistMuon);
  CHECK(with("").unsupported.empty());
  CHECK_FALSE(with("").job.profile.muon_nesterov);
  CHECK(with(R"(, "--muon-use-nesterov": true)").job.profile.muon_nesterov);
  CHECK(gpt7b_with(R"(, "--optimizer": "muon")").job.optimizer == OptimizerKind::kMuon);
  for (const char* more :
       {R"(, "--muon-num-ns-steps": 10)", R"(, "--muon-fp32-matmul-prec": "high")"}) {
    CAPTURE(more);
    CHECK(with(more).unsupported.find("described") != std::string::npos);
  }
  CHECK(gpt7b_with(R"(, "--optimizer": "lion")").unsupported.find("dist_muon are described") !=
        std::string::npos);
}

TEST_CASE("another engine and older names of recomputation are refused, not passed over") {
  CHECK(gpt7b_with(R"(, "--deepspeed": true)").unsupported.find("DeepSpeed engine") !=
        std::string::npos);
  CHECK(gpt7b_with(R"(, "--activations-checkpoint-method": "uniform")")
            .unsupported.find("--recompute-granularity full") != std::string::npos);
}

TEST_CASE("two microbatches' layers side by side are read, with weight gradients apart or not") {
  const RunReading run =
      gpt7b_with(R"(, "--overlap-moe-expert-parallel-comm": true, "--delay-wgrad-compute": true)");
  CHECK(run.job.profile.overlap_moe_expert_parallel_comm);
  CHECK(run.unsupported.empty());
  CHECK_FALSE(gpt7b_with("").job.profile.overlap_moe_expert_parallel_comm);
}

TEST_CASE("the allocator's settings are read from the environment") {
  const RunReading expandable =
      gpt7b_with("", R"({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})");
  CHECK(expandable.job.profile.allocator == AllocatorKind::kCachingExpandable);
  const RunReading nccl = gpt7b_with("", R"({"NCCL_BUFFSIZE": "8388608", "NCCL_X": "1"})");
  CHECK(use_named(nccl, "NCCL_BUFFSIZE").effect == SettingEffect::kNotCounted);
  CHECK(use_named(nccl, "NCCL_X").effect == SettingEffect::kUnknown);
}

// c10/core/AllocatorConfig.cpp: a tensor's block is as large with these words as without them, but
// for roundup_power2_divisions and another backend.
TEST_CASE("variables of torchtitan's script, of caches and of networks are known") {
  for (const std::string name :
       {"TORCHFT_LIGHTHOUSE", "TRANSFORMERS_CACHE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR",
        "TP_SOCKET_IFNAME", "TF_CPP_MIN_LOG_LEVEL", "LD_PRELOAD"}) {
    const RunReading run = gpt7b_with("", R"({")" + name + R"(": "x"})");
    CHECK_MESSAGE(use_named(run, name).effect == SettingEffect::kNone, name);
  }
  const RunReading run = gpt7b_with("", R"({"UB_SKIPMC": "1"})");
  CHECK(use_named(run, "UB_SKIPMC").effect == SettingEffect::kNotCounted);
}

TEST_CASE("what only the allocator's cache follows is noted, not refused") {
  for (const std::string word :
       {"max_split_size_mb:64", "garbage_collection_threshold:0.8",
        "graph_capture_record_stream_reuse:True", "max_non_split_rounding_mb:200"}) {
    const RunReading run =
        gpt7b_with("", R"({"PYTORCH_ALLOC_CONF": "expandable_segments:True,)" + word + R"("})");
    CHECK_MESSAGE(run.unsupported.empty(), run.unsupported);
    CHECK(run.job.profile.allocator == AllocatorKind::kCachingExpandable);
    CHECK(run.uses.back().value == word);
    CHECK(run.uses.back().effect == SettingEffect::kNotCounted);
    REQUIRE(run.notes.size() == 1);
    CHECK(run.notes[0].find(word + ": not modelled") != std::string::npos);
  }
  for (const std::string word : {"backend:cudaMallocAsync", "roundup_power2_divisions:4"}) {
    const RunReading run = gpt7b_with("", R"({"PYTORCH_CUDA_ALLOC_CONF": ")" + word + R"("})");
    CHECK(run.unsupported.find(word) != std::string::npos);
  }
}

TEST_CASE("a host that waits for each kernel is read from the environment") {
  CHECK(gpt7b_with("", R"({"CUDA_LAUNCH_BLOCKING": "1"})").job.profile.launch_blocking);
  CHECK_FALSE(gpt7b_with("", R"({"CUDA_LAUNCH_BLOCKING": "0"})").job.profile.launch_blocking);
  CHECK_FALSE(gpt7b_with("").job.profile.launch_blocking);
}

TEST_CASE("a host that waits for each kernel overlaps nothing, whatever the arguments ask for") {
  const std::string more = R"(, "--context-parallel-size": 2, "--tp-comm-overlap": true)";
  const RunReading run = gpt7b_with(more, R"({"CUDA_LAUNCH_BLOCKING": "1"})");
  CHECK(run.job.profile.launch_blocking);
  CHECK_FALSE(why_invalid(run.job, run.plan));
  REQUIRE(run.notes.size() == 1);
  CHECK(run.notes[0] ==
        "run.json:10: /environment/CUDA_LAUNCH_BLOCKING: one kernel runs at a time; read as off: "
        "overlap_grad_reduce true, overlap_param_gather true, overlap_p2p_comm true, tp_overlap "
        "pieces, cp_overlap attention");
  CHECK(gpt7b_with(more, R"({"CUDA_LAUNCH_BLOCKING": "0"})").notes.empty());
  CHECK(gpt7b_with(more).job.profile.overlap_grad_reduce);
}

TEST_CASE("cuBLAS' workspaces are those of the environment, or what deterministic runs need") {
  CHECK(gpt7b_with("").job.profile.torch_workspace_bytes == 8 * 4096 * 1024);
  const std::string small = R"({"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"})";
  CHECK(gpt7b_with("", small).job.profile.torch_workspace_bytes == (8192 + 128) * 1024);
  CHECK(message_of([] { gpt7b_with("", R"({"CUBLAS_WORKSPACE_CONFIG": ":4096"})"); }) ==
        "run.json:10: /environment/CUBLAS_WORKSPACE_CONFIG: found \":4096\", expected pairs of KiB "
        "and count such as :4096:8");
}

TEST_CASE("attention kernels and dispatchers are those of the arguments") {
  const RunReading run = gpt7b_with(
      R"(, "--attention-backend": "unfused", "--num-experts": 8, "--moe-router-topk": 2)");
  CHECK(run.unsupported.empty());
  CHECK(run.job.profile.attention_backend == AttentionBackend::kUnfused);
  CHECK(run.job.profile.attention_mask);
  CHECK(run.job.profile.moe_dispatcher == MoeDispatcher::kAllGather);
  CHECK_FALSE(run.job.profile.moe_grouped_gemm);
  CHECK_FALSE(run.job.profile.moe_permute_fusion);
  CHECK(gpt7b_with(R"(, "--num-experts": 8, "--moe-permute-fusion": true)")
            .job.profile.moe_permute_fusion);
  CHECK_FALSE(run.job.profile.moe_router_fusion);
  CHECK(gpt7b_with(R"(, "--num-experts": 8, "--moe-router-fusion": true)")
            .job.profile.moe_router_fusion);
  CHECK(run.job.profile.rope_fusion);
  CHECK_FALSE(gpt7b_with(R"(, "--no-rope-fusion": true)").job.profile.rope_fusion);
  const std::string flex = R"(, "--num-experts": 8, "--moe-token-dispatcher-type": "flex")";
  CHECK(gpt7b_with(flex).job.profile.moe_dispatcher == MoeDispatcher::kDeepEp);
  CHECK(gpt7b_with(flex + R"(, "--moe-flex-dispatcher-backend": "hybridep")")
            .job.profile.moe_dispatcher == MoeDispatcher::kHybridEp);
  const MoeSpec& routed = gpt7b_with(flex + R"(, "--moe-router-num-groups": 4,
      "--moe-router-group-topk": 2)")
                              .job.model.moe;
  CHECK(routed.num_groups == 4);
  CHECK(routed.topk_groups == 2);
}

TEST_CASE("layers are dealt out as the pipeline layout says") {
  const std::string base =
      R"({"--num-layers": 13, "--hidden-size": 512, "--num-attention-heads": 8, "--bf16": true,
      "--seq-length": 1024, "--max-position-embeddings": 1024, "--micro-batch-size": 4,
      "--mtp-num-layers": 1, "--position-embedding-type": "rope", "--disable-bias-linear": true,
      "--pipeline-model-parallel-size": 2, "--pipeline-model-parallel-layout": )";
  const RunReading run = reading_of(base + R"("Et|(tt|)*6mL"})");
  CHECK(run.plan.layers_per_chunk == std::vector<std::int64_t>{1, 2, 2, 2, 2, 2, 2, 0});
  CHECK(run.plan.vpp == 4);
  CHECK(run.job.model.num_mtp_layers == 1);
  CHECK(message_of([&] { reading_of(base + R"("Et|t?|L"})"); }).find("expected letters") !=
        std::string::npos);
}

TEST_CASE("the type of routing probabilities is read, and fp64 refused where it adds up outputs") {
  const std::string experts = R"(, "--num-experts": 8)";
  CHECK(gpt7b_with(experts).job.profile.moe_router_dtype == DType::kBf16);
  const std::string router = experts + R"(, "--moe-router-dtype": )";
  CHECK(gpt7b_with(router + R"("fp32")").job.profile.moe_router_dtype == DType::kFp32);
  CHECK(gpt7b_with(router + R"("fp64")")
            .unsupported.starts_with("unsupported: --moe-router-dtype fp64"));
  CHECK(gpt7b_with(router + R"("fp64", "--moe-token-dispatcher-type": "alltoall")")
            .unsupported.empty());
}

TEST_CASE("a list of layers with experts may be written as Python does") {
  CHECK(integer_pattern("([0]*1+[1]*2)*2", "") == std::vector<std::int64_t>{0, 1, 1, 0, 1, 1});
  CHECK(message_of([] { integer_pattern("[0]*", "--moe-layer-freq: "); }) ==
        "--moe-layer-freq: found \"[0]*\", expected a list such as [0]*3+[1]*12");
}

// core/optimizer/optimizer_config.py: store_param_remainders is on, whatever the arguments say.
TEST_CASE(
    "the precision-aware optimizer keeps half of the main parameters that bf16 weights have") {
  const std::string more = R"(, "--use-precision-aware-optimizer": true,
      "--exp-avg-dtype": "bf16", "--exp-avg-sq-dtype": "fp8")";
  const Plan plan = gpt7b_with(more).plan;
  CHECK(plan.master_dtype == DType::kBf16);
  CHECK(plan.exp_avg_dtype == DType::kBf16);
  CHECK(plan.exp_avg_sq_dtype == DType::kFp8);
  CHECK(plan.grad_dtype == DType::kFp32);
  CHECK(gpt7b_with(more + R"(, "--main-params-dtype": "fp16")").plan.master_dtype == DType::kFp16);
  // training/arguments.py:716-723
  CHECK(gpt7b_with(more + R"(, "--main-grads-dtype": "bf16")").plan.grad_dtype == DType::kBf16);
  const std::string fp8 = more + R"(, "--fp8-format": "hybrid", "--fp8-recipe": )";
  CHECK(gpt7b_with(fp8 + R"("delayed")").plan.master_dtype == DType::kBf16);
  CHECK(gpt7b_with(fp8 + R"("tensorwise")").plan.master_dtype == DType::kFp32);
  // core/optimizer/cpu_offloading/hybrid_optimizer.py
  const Plan offloaded = gpt7b_with(more + R"(, "--optimizer-cpu-offload": true)").plan;
  CHECK(offloaded.master_dtype == DType::kFp32);
  CHECK(offloaded.exp_avg_sq_dtype == DType::kFp32);
}

TEST_CASE("a communication unit is Megatron-FSDP's") {
  const std::string unit = R"(, "--suggested-communication-unit-size": 500000000)";
  CHECK(gpt7b_with(unit).job.profile.suggested_communication_unit_size == 0);
  const RunReading fsdp = gpt7b_with(
      unit +
      R"(, "--use-megatron-fsdp": true, "--data-parallel-sharding-strategy": "optim_grads_params")");
  CHECK(fsdp.job.profile.suggested_communication_unit_size == 500'000'000);
}

TEST_CASE("the meta device is a switch of Megatron-FSDP alone") {
  const std::string meta = R"(, "--init-model-with-meta-device": true)";
  CHECK_FALSE(gpt7b_with(meta).job.profile.init_model_with_meta_device);
  const RunReading fsdp = gpt7b_with(meta + R"(, "--use-megatron-fsdp": true)");
  CHECK(fsdp.unsupported.empty());
  CHECK(fsdp.job.profile.init_model_with_meta_device);
}

TEST_CASE("a norm of the parameters that is logged matters to Megatron-FSDP alone") {
  const std::string logged = R"(, "--log-params-norm": true)";
  CHECK_FALSE(gpt7b_with(logged).job.profile.log_params_norm);
  CHECK(gpt7b_with(logged + R"(, "--use-megatron-fsdp": true)").job.profile.log_params_norm);
}

TEST_CASE("a run that distils a teacher is refused by name") {
  const RunReading run = gpt7b_with(R"(, "--export-kd-teacher-load": "teacher")");
  CHECK(run.unsupported.starts_with("unsupported: --export-kd-teacher-load teacher: distillation"));
}

TEST_CASE("Megatron-FSDP that would fuse gradients of another type is told that it stops") {
  const std::string unfused = R"(, "--no-gradient-accumulation-fusion": true)";
  std::string fused(kGpt7b);
  const std::size_t at = fused.find(R"("--no-gradient-accumulation-fusion": true, )");
  fused.erase(at, fused.find("\"--bf16\"") - at);
  const std::string fsdp =
      R"(, "--use-megatron-fsdp": true, "--data-parallel-sharding-strategy": "optim_grads")";
  const RunReading stops = reading_of(fused + fsdp + "}");
  CHECK(stops.unsupported.find("--no-gradient-accumulation-fusion") != std::string::npos);
  CHECK(reading_of(fused + unfused + fsdp + "}").unsupported.empty());
  CHECK(reading_of(fused + fsdp + R"(, "--grad-reduce-in-bf16": true})").unsupported.empty());
  CHECK(reading_of(fused + R"(, "--use-megatron-fsdp": true})").unsupported.empty());
}

TEST_CASE("mistakes in arguments name the place, what was found and what was expected") {
  CHECK(message_of([] {
          gpt7b_with(R"(, "--ffn-hidden-size": "wide")");
        }).find("/arguments/--ffn-hidden-size: found \"wide\", expected an integer from 1") !=
        std::string::npos);
  CHECK(message_of([] { gpt7b_with(R"(, "--swiglu": 1)"); }).find("expected no value") !=
        std::string::npos);
  CHECK(message_of([] {
          gpt7b_with(R"(, "--normalization": "BatchNorm")");
        }).find("expected one of LayerNorm, RMSNorm") != std::string::npos);
  CHECK(message_of([] { reading_of(R"(["2", "--bf16"])"); }).find("expected an argument such as") !=
        std::string::npos);
}

TEST_CASE("a list of layers that cannot be read names its place") {
  const auto message = [](const std::string& json) {
    return message_of([&] { gpt7b_with(", " + json); });
  };
  CHECK(
      message(R"("--num-experts": 8, "--moe-layer-freq": "'([0]*1+[1]*31)'")") ==
      "run.json:10: /arguments/--moe-layer-freq: found \"'([0]*1+[1]*31)'\", expected a list such "
      "as [0]*3+[1]*12");
  CHECK(message(R"("--window-size": "wide")")
            .starts_with("run.json:10: /arguments/--window-size: found"));
}

// Megatron-LM core_v0.16.1 training/arguments.py:830, :900, :1266; transformer_config.py:1180.
TEST_CASE("arguments with which Megatron-LM does not start are refused") {
  const auto message = [](const std::string& json) {
    return message_of([&] { gpt7b_with(", " + json); });
  };
  std::string few(kGpt7b);
  few.replace(few.find("8192,", few.find("--max-position-embeddings")), 4, "4096");
  for (const std::string positions : {"learned_absolute", "rope"}) {
    CHECK(message_of([&] {
            reading_of(few + R"(, "--position-embedding-type": ")" + positions + "\"}");
          }) ==
          "run.json:5: /arguments/--max-position-embeddings: found 4096, expected at least "
          "--seq-length 8192");
  }
  const std::string selective = R"("--recompute-granularity": "selective")";
  CHECK(message(selective) == "no error");
  CHECK(message(selective + R"(, "--recompute-method": "uniform")")
            .starts_with("run.json:10: /arguments/--recompute-method: found selective"));
  CHECK(message(R"("--recompute-activations": true, "--recompute-num-layers": 1)")
            .starts_with("run.json:10: /arguments/--recompute-num-layers: found selective"));
  CHECK(message(R"("--multi-latent-attention": true)") ==  // with the list's groups
        "run.json:2: /arguments/--group-query-attention: found --multi-latent-attention beside it, "
        "expected one of them");
}

// Megatron-LM core_v0.16.1 core/models/gpt/gpt_layer_specs.py: with it the up-projections of
// multi-latent attention begin with a norm, and q and k have none.
TEST_CASE("--qk-layernorm of multi-latent attention norms no heads") {
  CHECK(gpt7b_with(R"(, "--qk-layernorm": true)").job.model.qk_norm);
  std::string arguments = std::string(kGpt7b) + R"(, "--multi-latent-attention": true,
    "--q-lora-rank": 1536, "--kv-lora-rank": 512, "--qk-layernorm": true})";
  const std::string groups = R"("--group-query-attention": true, "--num-query-groups": 8,)";
  arguments.erase(arguments.find(groups), groups.size());
  const ModelSpec model = reading_of(arguments).job.model;
  CHECK(model.is_mla());
  CHECK_FALSE(model.qk_norm);
}

TEST_CASE("a run that names no type is told that Megatron-LM then trains in fp32") {
  const std::string types = R"("--bf16": true)";
  std::string arguments = std::string(kGpt7b) + "}";
  arguments.erase(arguments.find(", " + types), types.size() + 2);
  const RunReading run = reading_of(arguments);
  CHECK(run.plan.precision == Precision::kFp32);
  REQUIRE(run.notes.size() == 1);
  CHECK(run.notes[0] ==
        "run.json: --bf16: neither --bf16 nor --fp16 is given, Megatron-LM then trains in fp32; "
        "--set bf16 says otherwise");
}

TEST_CASE("a list of words is read like the command line") {
  const RunReading run = reading_of(
      R"(["--num-layers", 2, "--hidden-size=64", "--num-attention-heads", "4", "--seq-length", "32",
          "--max-position-embeddings", "32", "--micro-batch-size", "1", "--bf16",
          "--recompute-granularity", "selective", "--recompute-modules", "mlp", "layernorm"])");
  CHECK(run.job.model.hidden == 64);
  CHECK(run.plan.recompute.modules.mlp);
  CHECK(run.plan.recompute.modules.layernorm);
  CHECK_FALSE(run.plan.recompute.modules.core_attn);
}

TEST_CASE("a case line may carry the arguments of a run instead of model, training and plan") {
  const std::string line =
      R"({"schema": 1, "id": "ci", "cluster": "1x8-h100", "from": {"arguments": )" +
      std::string(kGpt7b) + "}}}";
  const Case read = read_case(line, "cases.jsonl:1", Library());
  CHECK(read.framework == "megatron");
  CHECK(read.supported);
  CHECK(read.unsupported.empty());
  CHECK(read.plan.pp == 4);
  CHECK(read.job.cluster.world_size() == 8);
}

TEST_CASE("every argument list of Megatron-LM's CI is read, and no setting of it is dropped") {
  // The 403 recorded runs have 97 different lists of arguments; the file holds every one of them.
  const Library library;
  std::ifstream file(std::string(SHARDPLAN_SOURCE_DIR) + "/data/published/megatron_ci.jsonl");
  std::set<std::string> seen;
  std::map<SettingEffect, int> num_settings;
  std::string line;
  while (std::getline(file, line)) {
    const JsonValue root = parse_json(line, "megatron_ci.jsonl");
    const JsonValue& from = std::ranges::find(root.members, "from", &JsonMember::name)->value;
    const RunSettings settings = run_settings(from, "megatron_ci.jsonl");
    std::string list;
    for (const Setting& setting : settings.arguments) {
      list += setting.name;
      for (const std::string& value : setting.values) { list += " " + value; }
      list += "\n";
    }
    if (!seen.insert(list).second) {
      continue;
    }
    const RunReading run = read_run(settings, library.cluster("1x8-h100"), library);
    CHECK(run.uses.size() == settings.arguments.size() + settings.environment.size());
    for (const Setting& setting : settings.arguments) {
      const SettingUse& use = use_named(run, setting.name);
      CHECK_MESSAGE(use.effect != SettingEffect::kUnknown, use.name);
      ++num_settings[use.effect];
    }
    const bool refuses = std::ranges::any_of(
        run.uses, [](const SettingUse& use) { return use.effect == SettingEffect::kRefused; });
    CHECK((!refuses || run.unsupported.starts_with("unsupported: ")));
  }
  CHECK(seen.size() == 97);
  CHECK(num_settings[SettingEffect::kRead] > 1800);
  CHECK(num_settings[SettingEffect::kNone] > 1000);
  CHECK(num_settings[SettingEffect::kNotCounted] > 500);
}

TEST_CASE("a torchtitan configuration becomes the plan that torchtitan runs") {
  RunSettings settings;
  settings.format = RunFormat::kTorchtitan;
  const auto set = [&](const char* name, const char* value) {
    settings.arguments.push_back({.name = name, .values = {value}, .place = "t.toml: "});
  };
  set("model.flavor", "8B");
  set("training.seq_len", "8192");
  set("training.local_batch_size", "4");
  set("parallelism.pipeline_parallel_degree", "2");
  set("parallelism.tensor_parallel_degree", "2");
  set("parallelism.pipeline_parallel_schedule", "Interleaved1F1B");
  set("activation_checkpoint.selective_ac_option", "op");
  set("validation.freq", "5");
  const Library library;
  const RunReading run = read_run(settings, library.cluster("1x8-h100"), library);
  CHECK(run.job.model.num_layers() == 32);
  CHECK(run.plan.dp == 2);
  CHECK(run.plan.zero == 3);
  CHECK(run.plan.sequence_parallel);
  // 32 layers, embedding and head make 34 over 4 stages: 9, 9, 8, 8 less one at each end.
  CHECK(run.plan.layers_per_chunk == std::vector<std::int64_t>{8, 9, 8, 7});
  CHECK(run.plan.micro_batch == 1);
  CHECK(run.job.global_batch == 8);  // 4 microbatches on each of 2 ranks
  CHECK(run.plan.recompute.policy == "every_second_matmul");
  // One rank exchanges no keys and values, so how it would do so is no reason to refuse the run.
  CHECK_FALSE(why_invalid(run.job, run.plan).has_value());
  CHECK(use_named(run, "validation.freq").effect == SettingEffect::kNotCounted);
}

// config/job_config.py: context_parallel_rotate_method is allgather unless it is set, as in every
// measured torchtitan run with cp above 1 in data/measured.
TEST_CASE("torchtitan's own context parallelism is the one that was measured") {
  const Library library;
  for (const std::string rotate : {"", "allgather", "alltoall"}) {
    RunSettings settings;
    settings.format = RunFormat::kTorchtitan;
    const auto set = [&](const char* name, const std::string& value) {
      settings.arguments.push_back({.name = name, .values = {value}, .place = "t.toml: "});
    };
    set("model.flavor", "8B");
    set("training.seq_len", "8192");
    set("parallelism.context_parallel_degree", "2");
    if (!rotate.empty()) {
      set("parallelism.context_parallel_rotate_method", rotate);
    }
    const RunReading run = read_run(settings, library.cluster("1x8-h100"), library);
    CHECK_FALSE(why_invalid(run.job, run.plan).has_value());
    CHECK(run.unsupported.empty() == (rotate != "alltoall"));
  }
}

TEST_CASE("torchtitan's sizes are refused where their product does not fit 64 bits") {
  RunSettings settings;
  settings.format = RunFormat::kTorchtitan;
  for (const auto& [name, value] :
       {std::pair{"model.flavor", "8B"}, std::pair{"parallelism.pipeline_parallel_degree", "16"},
        std::pair{"parallelism.tensor_parallel_degree", "1048576"},
        std::pair{"parallelism.context_parallel_degree", "1048576"},
        std::pair{"parallelism.data_parallel_replicate_degree", "1048576"}}) {
    settings.arguments.push_back({.name = name, .values = {value}, .place = "t.toml: "});
  }
  const Library library;
  const RunReading run = read_run(settings, library.cluster("1x8-h100"), library);
  CHECK(run.plan.dp == 1048576);
  CHECK(why_invalid(run.job, run.plan).has_value());
}

namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

// Llama-3-8B on eight GPUs, one sequence of 2048 tokens a rank.
RunReading torchtitan_with(const Pairs& settings) {
  RunSettings run;
  run.format = RunFormat::kTorchtitan;
  run.file = "t.toml";
  run.arguments = {{.name = "model.flavor", .values = {"8B"}, .place = ""},
                   {.name = "training.local_batch_size", .values = {"4"}, .place = ""}};
  for (const auto& [name, value] : settings) {
    run.arguments.push_back({.name = name, .values = {value}, .place = "t.toml: " + name + ": "});
  }
  const Library library;
  return read_run(run, library.cluster("1x8-h100"), library);
}

}  // namespace

TEST_CASE("what torchtitan's own checks of sizes refuse is refused") {
  const auto message = [](const Pairs& settings) {
    return message_of([&] { torchtitan_with(settings); });
  };
  CHECK(message({{"parallelism.data_parallel_shard_degree", "0"}}) ==
        "t.toml: parallelism.data_parallel_shard_degree: found 0, expected -1 (what the other "
        "degrees leave) or 1 or more");
  // 8 GPUs less pp 4 leave 2 ranks of 4 sequences.
  CHECK(message({{"parallelism.pipeline_parallel_degree", "4"},
                 {"training.global_batch_size", "12"}}) ==
        "t.toml: training.global_batch_size: found 12, expected a multiple of "
        "training.local_batch_size 4 times the data-parallel degree 2");
  CHECK(message({{"training.seq_len", "4100"}, {"parallelism.tensor_parallel_degree", "4"}}) ==
        "t.toml: training.seq_len: found 4100, expected a multiple of 2 * tp 4 * cp 1");
  CHECK(message({{"training.global_batch_size", "0"}}).find("found 0, expected a multiple") !=
        std::string::npos);
  CHECK(torchtitan_with({{"training.global_batch_size", "-1"}}).job.global_batch == 32);
}

TEST_CASE("torchtitan's replicas of one shard each are DDP's, of more FSDP2's") {
  const auto plan_of = [](const char* replicas, const char* shards) {
    const RunReading run =
        torchtitan_with({{"parallelism.data_parallel_replicate_degree", replicas},
                         {"parallelism.data_parallel_shard_degree", shards}});
    CHECK_FALSE(why_invalid(run.job, run.plan));
    return run.plan;
  };
  const Plan ddp = plan_of("8", "1");
  CHECK(ddp.zero == 0);
  CHECK(ddp.dp == 8);
  CHECK(ddp.dp_replicate == 8);
  CHECK(plan_of("4", "2").zero == 3);
  CHECK(plan_of("1", "-1").zero == 3);
}

TEST_CASE("torchtitan without ranks to shard over is unsupported, not invalid") {
  const auto message = [](const Pairs& settings) {
    const RunReading run = torchtitan_with(settings);
    const std::optional<InvalidReason> reason = why_invalid(run.job, run.plan);
    REQUIRE(reason.has_value());
    CHECK(reason->rule == "unsupported: ranks without shards");
    return reason->message;
  };
  CHECK(message({{"parallelism.tensor_parallel_degree", "8"}})
            .find("without FSDP torchtitan trains in fp32") != std::string::npos);
  // Sizes that do not fill the GPUs stay what they are: invalid, with the reason.
  const RunReading uneven = torchtitan_with({{"parallelism.tensor_parallel_degree", "16"}});
  CHECK(why_invalid(uneven.job, uneven.plan).value().rule == "world_divisible_by_tp_cp_pp");
}

TEST_CASE("a step of several pipeline passes has several bubbles, which no schedule describes") {
  const Pairs two_passes = {{"parallelism.pipeline_parallel_degree", "4"},
                            {"training.global_batch_size", "16"}};
  CHECK(torchtitan_with(two_passes)
            .unsupported.starts_with("unsupported: training.global_batch_size 16: 2 passes"));
  CHECK(torchtitan_with({{"training.global_batch_size", "64"}}).unsupported.empty());
}

TEST_CASE("names that torchtitan does not have are refused together, one with what may be meant") {
  const auto message = [](const Pairs& pairs) {
    return message_of([&] { torchtitan_with(pairs); });
  };
  CHECK(message({{"optimizer.fused", "true"}})
            .ends_with("; its name is now optimizer.implementation"));
  CHECK(message({{"training.seqlen", "2"}})
            .starts_with("t.toml: training.seqlen: found a setting that torchtitan v0.2.2 does"));
  CHECK(message({{"training.seqlen", "2"}}).find("training.seq_len") != std::string::npos);
  CHECK(message({{"training.img_size", "256"}, {"encoder.t5_encoder", "x"}}) ==
        "t.toml: found 2 settings that torchtitan v0.2.2 does not have, expected its own: "
        "training.img_size, encoder.t5_encoder");
}

TEST_CASE("names that torchtitan had in earlier releases are read as those of today, and said") {
  const RunReading run = torchtitan_with({{"training.batch_size", "2"},
                                          {"training.tensor_parallel_degree", "2"},
                                          {"experimental.pipeline_parallel_degree", "2"},
                                          {"training.compile", "true"},
                                          {"training.seed", "1"},
                                          {"checkpoint.enable_checkpoint", "false"},
                                          {"checkpoint.last_save_model_weights_only", "true"},
                                          {"job.print_args", "false"},
                                          {"job.use_for_integration_test", "true"},
                                          {"float8.filter_fqns", "output"}});
  CHECK(run.unsupported.empty());
  CHECK(run.plan.tp == 2);
  CHECK(run.plan.pp == 2);
  CHECK(run.job.profile.compile);
  REQUIRE(run.notes.size() == 1);
  CHECK(run.notes[0].starts_with(
      "t.toml: names of another torchtitan, read as those of v0.2.2: training.batch_size as "
      "training.local_batch_size, training.tensor_parallel_degree as parallelism."));
  CHECK(run.notes[0].ends_with("float8.filter_fqns as quantize.linear.float8.filter_fqns"));
  CHECK(torchtitan_with({}).notes.empty());
  CHECK(message_of([] {
          torchtitan_with({{"float8.enable_float8_linear", "true"}});
        }).starts_with("t.toml: float8.enable_float8_linear: found a setting"));
}

TEST_CASE("a schedule of torchtitan's is named in any case of letters") {
  const auto schedule = [](const std::string& name) {
    const RunReading run = torchtitan_with({{"parallelism.pipeline_parallel_degree", "2"},
                                            {"parallelism.pipeline_parallel_schedule", name}});
    CHECK_MESSAGE(run.unsupported.empty(), name);
    return run.plan.schedule;
  };
  CHECK(schedule("1f1b") == Schedule::k1F1B);
  CHECK(schedule("interleaved1f1b") == Schedule::kInterleaved1F1B);
  CHECK(schedule("zbvzerobubble") == Schedule::kZbv);
}

TEST_CASE("gradients that torchtitan reduces in another type than fp32 are unsupported") {
  const char* const name = "training.mixed_precision_reduce";
  CHECK(torchtitan_with({{name, "float32"}}).unsupported.empty());
  CHECK(torchtitan_with({{name, "bfloat16"}}).unsupported ==
        "unsupported: training.mixed_precision_reduce bfloat16: float32 is described");
}

TEST_CASE("settings of which none is torchtitan's are no run; a model left out is said") {
  const auto read = [](const std::vector<std::string>& names) {
    RunSettings run;
    run.format = RunFormat::kTorchtitan;
    run.file = "t.toml";
    for (const std::string& name : names) {
      run.arguments.push_back(
          {.name = name, .values = {"64"}, .place = "t.toml:1: " + name + ": "});
    }
    const Library library;
    return read_run(run, library.cluster("1x8-h100"), library);
  };
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{}, {"tool.poetry.name"}, {"name", "tool.poetry.version"}}) {
    CHECK(message_of([&] { read(names); }) ==
          "t.toml: found no setting of torchtitan, expected sections such as [model] and "
          "[training]");
  }
  const RunReading run = read({"training.seq_len"});
  CHECK(run.job.model.name == "llama3/debugmodel");
  REQUIRE(run.notes.size() == 1);
  CHECK(run.notes[0] ==
        "t.toml: model.flavor: found nothing, took torchtitan's default, llama3/debugmodel");
}

TEST_CASE("every table of arguments can be read, and gives each a meaning and a source") {
  const Library library;
  for (const char* name :
       {"megatron", "torchtitan", "nanotron", "deepspeed", "transformers", "environment"}) {
    const ArgumentTable table = argument_table(library, name);
    CHECK(table.rows.size() > 40);
    for (const ArgumentRow& row : table.rows) {
      CHECK_MESSAGE(!row.meaning.empty(), row.name);
      CHECK_MESSAGE(!row.source.empty(), row.name);
    }
  }
}

}  // namespace shardplan
