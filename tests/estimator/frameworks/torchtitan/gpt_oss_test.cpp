// torchtitan's GPT-OSS: what PyTorch's hooks on saved tensors and a count of operators show of
// v0.2.2's own layer on a CPU (flex_attention stood in for by a function that saves what its
// compiled graph does), parameters that it counted on a rank, sizes counted by hand, laws.
#include <doctest/doctest.h>

#include <string_view>
#include <unordered_map>

#include "estimator/estimate.h"
#include "estimator/frameworks/torchtitan/gpt_oss/kernels.h"
#include "estimator/frameworks/torchtitan/gpt_oss/layer.h"
#include "estimator/plan/parameters.h"
#include "tests/estimator/allocation_changes.h"
#include "tests/estimator/frameworks/torchtitan/peaks.h"
#include "tests/estimator/llama_job.h"

namespace shardplan::torchtitan {
namespace {

struct Shape {
  std::int64_t hidden = 0;
  std::int64_t expert_ffn = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t layers = 0;
  std::int64_t experts = 0;
  std::int64_t vocab = 0;
};

// Heads of 64, four experts a token, and a window of 128 tokens in every second layer.
Job gpt_oss(const Shape& shape, std::int64_t gpus, std::int64_t sequence) {
  Job job = llama_job("torchtitan",
                      {.hidden = shape.hidden,
                       .ffn = shape.expert_ffn,
                       .heads = shape.heads,
                       .layers = shape.layers},
                      gpus, sequence, gpus);
  ModelSpec& model = job.model;
  model.family = "gpt_oss";
  model.vocab = shape.vocab;
  model.num_kv_heads = shape.kv_heads;
  model.head_dim = 64;
  model.activation = Activation::kClampedSwiglu;
  model.qkv_bias = true;
  model.attention_output_bias = true;
  model.moe = {.num_experts = shape.experts,
               .topk = 4,
               .expert_ffn = shape.expert_ffn,
               .biased_router = true,
               .biased_experts = true};
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    model.layers[i] = {.is_moe = true, .attention_window = i % 2 == 0 ? 128 : 0, .has_sinks = true};
  }
  return job;
}

Job small(std::int64_t gpus) {
  return gpt_oss({.hidden = 1024,
                  .expert_ffn = 768,
                  .heads = 16,
                  .kv_heads = 8,
                  .layers = 4,
                  .experts = 16,
                  .vocab = 32768},
                 gpus, 4096);
}

Plan sharded(std::int64_t dp, std::int64_t ep) {
  Plan plan;
  plan.dp = dp;
  plan.ep = ep;
  plan.zero = 3;
  return plan;
}

Plan divided(std::int64_t dp, std::int64_t tp, std::int64_t ep, std::int64_t etp) {
  Plan plan = sharded(dp, ep);
  plan.tp = tp;
  plan.etp = etp;
  plan.sequence_parallel = true;
  return plan;
}

// Bytes that are there when all has been played.
std::int64_t held_bytes(const std::vector<AllocationEvent>& events) {
  std::unordered_map<std::int64_t, std::int64_t> bytes;
  for (const AllocationEvent& event : events) { bytes[event.id] = event.bytes; }
  std::int64_t sum = 0;
  for (const auto& [id, held] : bytes) { sum += held; }
  return sum;
}

// The layer that the hooks looked at: 512 tokens of 96, 6 heads and 2 of keys, 8 experts of width
// 80, 2048 rows and 2112 with padding.
Job hooked() {
  return gpt_oss({.hidden = 96,
                  .expert_ffn = 80,
                  .heads = 6,
                  .kv_heads = 2,
                  .layers = 1,
                  .experts = 8,
                  .vocab = 1000},
                 8, 512);
}

TEST_CASE("a layer of GPT-OSS keeps what autograd saves of torchtitan's") {
  const Job job = hooked();
  const TitanSizes sizes(job, sharded(8, 1), true);
  TitanTape tape(0);
  GptOssLayer played(tape, sizes);
  LayerTensors layer;
  layer.input = tape.make(sizes.sequence);
  layer.rotary_cast = tape.make(sizes.rotary_cast);
  played.forward(layer, LayerPass::kSaves);
  const std::int64_t stream = 98304;
  const std::int64_t norms = 2 * (2048 + stream);
  const std::int64_t attention = 131072 + 393216 + 2 * 131072 + 393216 + 12288;
  const std::int64_t sinks = 12288 + 6144 + 393216;
  const std::int64_t router = 16384 + 16384 + 2048 + 8192 + 8192 + 16384 + 16384 + 8448;
  const std::int64_t experts = 405504 + 2 * 16384 + 675840 + 5 * 337920;
  const std::int64_t combined = 786432;
  const std::int64_t bias_workspace = 1 << 20;
  CHECK(held_bytes(tape.take_events()) ==
        3 * stream + norms + attention + sinks + router + experts + combined + bias_workspace);
}

TEST_CASE("backward of a layer of GPT-OSS frees all but gradients") {
  for (const LayerPass pass : {LayerPass::kSaves, LayerPass::kSavesNothing, LayerPass::kSavesOps}) {
    const LayerPass replay = pass == LayerPass::kSaves          ? LayerPass::kSaves
                             : pass == LayerPass::kSavesNothing ? LayerPass::kReplay
                                                                : LayerPass::kReplayOps;
    const Job job = hooked();
    const TitanSizes sizes(job, sharded(8, 1), true);
    TitanTape tape(0);
    GptOssLayer played(tape, sizes);
    LayerTensors layer;
    layer.input = tape.make(sizes.sequence);
    layer.rotary_cast = tape.make(sizes.rotary_cast);
    TapeTensor output = played.forward(layer, pass);
    tape.free(output);
    TapeTensor gradient = tape.make(sizes.sequence);
    LayerGradients weights;
    played.backward(layer, gradient, weights, replay);
    tape.free(gradient, layer.rotary_cast);
    std::int64_t of_weights = 0;
    for (const TapeTensor& weight : weights.weights) { of_weights += weight.bytes; }
    const std::int64_t bias_workspace = 1 << 20;
    CHECK(held_bytes(tape.take_events()) == of_weights + bias_workspace);
    const std::int64_t products = 2 * 96 * (2 * 384 + 2 * 128 + 8);
    CHECK(of_weights == products + 2 * 8 * (160 * 96 + 160 + 80 * 96 + 96));
  }
}

// In MiB; 65536 rows of 1024 with padding, of which 64512 are experts'.
TEST_CASE("experts of GPT-OSS allocate and free as their operators do") {
  Job job = gpt_oss({.hidden = 1024,
                     .expert_ffn = 1024,
                     .heads = 16,
                     .kv_heads = 8,
                     .layers = 2,
                     .experts = 128,
                     .vocab = 32768},
                    8, 16128);
  const TitanSizes sizes(job, sharded(8, 1), true);
  REQUIRE(sizes.moe.padded == 65536);
  TitanTape tape(0);
  GptOssLayer played(tape, sizes);
  LayerTensors layer;
  layer.input = tape.make(sizes.sequence);
  layer.rotary_cast = tape.make(sizes.rotary_cast);
  played.forward(layer, LayerPass::kSaves);
  std::vector<std::int64_t> changes;
  for (const std::int64_t change : large_changes(tape.take_events())) {
    changes.push_back(change / kMiB);
  }
  const std::vector<std::int64_t> operators = {
      256,  252,  4,    256, -4,   -252, 256,
      -256,                                     // mlp1, its bias repeated, zeros, both; the sum
      128,  128,  128,  128, -128, 128,         // both bounded, times 1.702, sigmoid, product
      128,  128,  -128,                         // one added, product; up is local
      128,  126,  2,    128, -2,   128,  -128,  // mlp2, its bias, zeros, both; the sum
      -128, -126, -256};                        // locals
  const auto found =
      std::search(changes.begin(), changes.end(), operators.begin(), operators.end());
  CHECK(found != changes.end());
}

// As a trace of four layers of 20b on an H200 has them.
TEST_CASE("gradients of the biases of GPT-OSS's attention are summed in as many parts as traced") {
  Job job = gpt_oss({.hidden = 2880,
                     .expert_ffn = 2880,
                     .heads = 64,
                     .kv_heads = 8,
                     .layers = 4,
                     .experts = 32,
                     .vocab = 16384},
                    8, 4096);
  job.cluster.gpu.num_sms = 132;
  const TitanSizes sizes(job, sharded(8, 8), true);
  CHECK(sizes.bias_sum(Weight::kQuery) == 134'217'728);
  CHECK(sizes.bias_sum(Weight::kKey) == 16'777'216);
  CHECK(sizes.bias_sum(Weight::kOutput) == 94'371'840);
}

// The same trace, from the gradient of the attention's output to that of its input, in units of
// 2^20 / 8 bytes: 4096 tokens of 2880, 64 heads and 8 of keys.
TEST_CASE("the backward of GPT-OSS's attention allocates and frees as traced") {
  Job job = gpt_oss({.hidden = 2880,
                     .expert_ffn = 2880,
                     .heads = 64,
                     .kv_heads = 8,
                     .layers = 4,
                     .experts = 32,
                     .vocab = 16384},
                    8, 4096);
  job.cluster.gpu.num_sms = 132;
  const TitanSizes sizes(job, sharded(8, 8), true);
  TitanTape tape(0);
  GptOssLayer played(tape, sizes);
  LayerTensors layer;
  layer.input = tape.make(sizes.sequence);
  layer.rotary_cast = tape.make(sizes.rotary_cast);
  TapeTensor output = played.forward(layer, LayerPass::kSaves);
  tape.take_events();
  LayerGradients weights;
  played.backward(layer, output, weights, LayerPass::kSaves);
  std::vector<std::int64_t> made;
  for (const AllocationEvent& event : tape.take_events()) {
    if (event.bytes >= kMiB) {
      made.push_back(event.bytes * 8 / kMiB);
    }
  }
  const std::vector<std::int64_t> traced = {
      256, 180, 720,                       // wo: of its input, of its weight, of its bias
      256, 256, 8,    8,   8,              // factors and output; statistics
      256, 8,   256,  32,  32,             // flex_attention
      32,  16,  32,   32,  32,             // keys turned back
      256, 128, 256,  256, 256,            // queries
      180, 22,  128,  180, 22,  128, 180,  // wv, wk, the sum of both
      180, 180, 1024, 180};                // wq, the norm
  REQUIRE(made.size() > traced.size());
  CHECK(std::vector<std::int64_t>(made.end() - std::ssize(traced), made.end()) == traced);
}

// Of a model of two layers: 8 heads, as many of keys, 8 experts; what v0.2.2 counted of rank 0.
TEST_CASE("a rank holds as many parameters of GPT-OSS as torchtitan counted") {
  const auto parameters = [](const Plan& plan, std::int64_t gpus) {
    const Job job = gpt_oss({.hidden = 256,
                             .expert_ffn = 256,
                             .heads = 8,
                             .kv_heads = 8,
                             .layers = 2,
                             .experts = 8,
                             .vocab = 4096},
                            gpus, 512);
    const StageMemory stage = estimate_memory(job, plan).stages.at(0);
    std::int64_t elements = 0;
    for (const Row& row : stage.rows) {
      elements += row.name == "parameters" ? row.bytes / 4 : 0;
      elements += row.name == "parameters.of_layers" ? row.bytes / 2 : 0;
    }
    return elements;
  };
  const auto is_near = [](std::int64_t elements, std::int64_t counted) {
    constexpr std::int64_t kRounding = 256 * 37;  // 512 bytes a tensor
    return counted <= elements && elements <= counted + kRounding;
  };
  CHECK(is_near(parameters(sharded(8, 1), 8), 789'092));
  CHECK(is_near(parameters(sharded(8, 4), 8), 789'092));
  CHECK(is_near(parameters(sharded(16, 4), 16), 394'804));
  CHECK(is_near(parameters(divided(4, 2, 1, 2), 8), 790'342));
  CHECK(is_near(parameters(divided(4, 2, 4, 2), 8), 790'342));
  CHECK(is_near(parameters(divided(4, 2, 8, 1), 8), 789'830));
  Plan replicas = sharded(8, 1);
  replicas.dp_replicate = 2;
  CHECK(is_near(parameters(replicas, 8), 1'578'184));
}

TEST_CASE("the layers of GPT-OSS, their gradients and moments are bf16, the ends fp32") {
  const Job job = small(8);
  const StageMemory stage = estimate_memory(job, sharded(8, 1)).stages.at(0);
  const auto bytes_of_row = [&stage](std::string_view name) {
    const auto row = std::ranges::find(stage.rows, name, &Row::name);
    return row == stage.rows.end() ? 0 : row->bytes;
  };
  const std::int64_t ends = 2 * job.model.vocab * job.model.hidden + job.model.hidden;
  const std::int64_t layers = count_parameters(job.model) - ends;
  const auto is_near = [](std::int64_t bytes, std::int64_t counted) {
    return counted <= bytes && bytes <= counted + 4 * 17 * kAllocatorRounding;
  };
  CHECK(is_near(bytes_of_row("parameters"), 4 * ends / 8));
  CHECK(is_near(bytes_of_row("parameters.of_layers"), 2 * layers / 8));
  CHECK(is_near(bytes_of_row("optimizer.exp_avg"), 4 * ends / 8));
  CHECK(is_near(bytes_of_row("optimizer.exp_avg_sq_of_layers"), 2 * layers / 8));
}

void check_small(Job job, const Plan& plan) {
  for (const std::int64_t vocab : {4096, 32768}) {
    job.model.vocab = vocab;
    CAPTURE(vocab);
    check_peaks_alike(job, plan);
  }
}

TEST_CASE("GPT-OSS's rows and its timeline peak alike") {
  for (const std::int64_t ep : {1, 2, 8}) {
    CAPTURE(ep);
    check_small(small(8), sharded(8, ep));
  }
  check_small(small(8), divided(4, 2, 1, 2));
  check_small(small(8), divided(4, 2, 4, 2));
  check_small(small(8), divided(4, 2, 8, 1));
  Plan replicas = sharded(8, 1);
  replicas.dp_replicate = 2;
  check_small(small(8), replicas);
  Job job = small(8);
  job.profile.compile = true;
  job.profile.compile_layers = false;
  check_small(job, sharded(8, 8));
  Job few_tokens = small(8);  // whose peak is where experts' gradients are reduced
  few_tokens.sequence_length = 256;
  for (const std::int64_t ep : {2, 8}) {
    CAPTURE(ep);
    check_small(few_tokens, sharded(8, ep));
  }
  job.profile.reshard_after_forward = ReshardAfterForward::kAlways;
  check_small(job, sharded(8, 1));
}

// What one operator reads and writes, in elements of a half: gate or up.
struct Moved {
  double reads = 0;
  double writes = 0;
};

double moved_elements(std::initializer_list<Moved> operators) {
  double sum = 0;
  for (const Moved& moved : operators) { sum += moved.reads + moved.writes; }
  return sum;
}

TEST_CASE("the kernels of a bounded gate move what its operators read and write") {
  const Moved unary{1, 1};
  const Moved binary{2, 1};
  const double forward = moved_elements({{0, 2},
                                         {2, 2},
                                         {4, 2},  // bias repeated, cat, added
                                         unary,
                                         unary,
                                         unary,
                                         unary,
                                         binary,  // bounds, 1.702, sigmoid, product
                                         unary,
                                         binary});  // one added, product
  const double backward = moved_elements({binary,
                                          binary,
                                          binary,
                                          binary,
                                          binary,  // four products, sigmoid's
                                          unary,
                                          binary,  // 1.702, sum
                                          {1, 0.5},
                                          {1, 0.5},
                                          {1, 0.5},
                                          {1.5, 1},  // both bounds of up
                                          {1, 0.5},
                                          {1.5, 1},  // the one of gate
                                          {0, 2},
                                          unary,
                                          {0, 2},
                                          unary,
                                          {4, 2}});  // halves in zeros, their sum
  constexpr double kBf16 = 2;
  const Passes passes = bounded_gate_kernels(small(8).cluster.gpu, kBf16);
  CHECK(passes.forward.streamed + passes.forward.rearranged == kBf16 * forward);
  CHECK(passes.backward.streamed + passes.backward.rearranged == kBf16 * backward);
}

TEST_CASE("a window on every second layer of GPT-OSS saves time and no memory") {
  Job windowed = small(8);
  windowed.sequence_length = 32768;
  Job whole = windowed;
  for (LayerSpec& layer : whole.model.layers) {
    layer.attention_window = layer.attention_window > 0 ? whole.sequence_length : 0;
  }
  const Plan plan = sharded(8, 8);
  CHECK(estimate_step_time(windowed, plan).total_s < estimate_step_time(whole, plan).total_s);
  CHECK(estimate_memory(windowed, plan).stages.at(0).allocated_bytes ==
        estimate_memory(whole, plan).stages.at(0).allocated_bytes);
}

TEST_CASE("what torchtitan refuses of GPT-OSS is refused with its own words") {
  const auto reason = [](const Job& job, const Plan& plan) {
    const std::optional<InvalidReason> why = why_invalid(job, plan);
    return why ? why->rule + ": " + why->message : std::string();
  };
  const auto says = [](const std::string& message, std::string_view words) {
    return message.find(words) != std::string::npos;
  };
  Job job = small(8);
  CHECK(reason(job, sharded(8, 8)).empty());
  Plan plan = sharded(4, 1);
  plan.pp = 2;
  plan.schedule = Schedule::k1F1B;
  CHECK(says(reason(job, plan), "gpt_oss does not support pipelining"));
  plan = sharded(4, 1);
  plan.cp = 2;
  CHECK(says(reason(job, plan), "CP support for gpt-oss model is still in progress."));
  plan = sharded(1, 1);
  plan.zero = 0;
  CHECK(says(reason(small(1), plan), "unsupported: GPT-OSS without FSDP"));
  job.profile.compile = true;
  CHECK(says(reason(job, sharded(8, 8)), "gpt_oss_layers_are_not_compiled"));
  job.profile.compile_layers = false;
  CHECK(reason(job, sharded(8, 8)).empty());
  job.profile.attention_backend = AttentionBackend::kFlex;
  CHECK(reason(job, sharded(8, 8)).empty());
  job.profile.attention_backend = AttentionBackend::kFlash;
  CHECK(says(reason(job, sharded(8, 8)), "gpt-oss only support FlexAttention"));
  job = small(8);
  job.model.layers[0].attention_window = 0;
  CHECK(says(reason(job, sharded(8, 8)), "unsupported: model"));
  job = small(8);
  job.model.family = "qwen3_moe";
  CHECK(says(reason(job, sharded(8, 8)), "unsupported: model"));
}

}  // namespace
}  // namespace shardplan::torchtitan
