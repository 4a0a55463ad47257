// Kernels from elsewhere in place of transformers' operators: ScatterMoE's and megablocks' experts,
// and norms and rotary embeddings of the Hub, counted by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "estimator/estimate.h"
#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/scattermoe.h"
#include "estimator/frameworks/transformers/trainer.h"
#include "tests/estimator/frameworks/transformers/played_bytes.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

constexpr std::int64_t kTokens = 512;
constexpr std::int64_t kHidden = 512;
constexpr std::int64_t kFfn = 256;
constexpr std::int64_t kLayers = 2;
constexpr std::int64_t kExperts = 8;
constexpr std::int64_t kChosen = 2;
constexpr std::int64_t kRows = kChosen * kTokens;
constexpr std::int64_t kGateUp = kExperts * 2 * kFfn * kHidden;
constexpr std::int64_t kDown = kExperts * kHidden * kFfn;

Job qwen3_moe() {
  Job job = small_trainer_job(1);
  job.model.family = "qwen3_moe";
  job.model.moe = {.num_experts = kExperts, .topk = kChosen, .expert_ffn = kFfn};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  return job;
}

Job gpt_oss() {
  Job job = qwen3_moe();
  job.model.family = "gpt_oss";
  job.model.activation = Activation::kClampedSwiglu;
  job.model.qkv_bias = true;
  job.model.attention_output_bias = true;
  job.model.moe.biased_router = true;
  job.model.moe.biased_experts = true;
  for (LayerSpec& layer : job.model.layers) { layer.has_sinks = true; }
  return job;
}

Job with_attention_adapters(Job job) {
  job.adapters = {.rank = 8, .targets = {true, true, true, true}};
  return job;
}

Job with_expert_adapters(Job job) {
  job.adapters = {.rank = 4,
                  .targets = {true, true, true, true, true, true, true},
                  .expert_targets = ExpertTargets::kFfnNames};
  return job;
}

Job by(ExpertKernels kernels, Job job) {
  job.profile.expert_kernels = kernels;
  return job;
}

Plan recomputing() {
  Plan plan = trainer_plan(0);
  plan.recompute = {.granularity = RecomputeGranularity::kFull, .num_layers = 1};
  return plan;
}

std::string refusal(const Job& job, const Plan& plan = trainer_plan(0)) {
  const std::optional<InvalidReason> reason = why_invalid(job, plan);
  return reason ? reason->message : "";
}

constexpr std::int64_t kPlaces = 2 * 8;  // of every row its expert and its place, in int64

// axolotl's own functions over stand-ins for the kernels, run on a CPU with hooks on what autograd
// saves, keep of a layer: gate and up as one, the activation and the product, the rows' output, the
// weights of rows and the places, 3,688,512 bytes with the tokens.
TEST_CASE("ScatterMoE keeps of experts what its autograd functions save") {
  const std::int64_t kept = kRows * (4 * kFfn + 2 * kFfn + 2 * kFfn + 2 * kHidden + 2 + kPlaces);
  constexpr std::int64_t kOffsets = 8 * kExperts;  // of experts, which are not counted
  CHECK(kept + 2 * kTokens * kHidden + kOffsets == 3'688'512);
  // The router keeps its probabilities in fp32 and the chosen ones, as beside grouped products,
  // which keep the same, but rows of tokens for every expert in place of the tokens.
  const Job job = qwen3_moe();
  const Job scattered = by(ExpertKernels::kScatterMoe, job);
  CHECK(saved_bytes(job, "layer.ffn") - saved_bytes(scattered, "layer.ffn") ==
        kLayers * kRows * (2 * kHidden - kPlaces));
  CHECK(saved_bytes(job, "layer.norm") == saved_bytes(scattered, "layer.norm"));
}

// Neither the rows in front of a frozen product nor the tokens are saved by grouped products.
TEST_CASE("ScatterMoE keeps inputs of frozen experts, too, and makes their gradients") {
  const Job job = with_attention_adapters(qwen3_moe());
  const Job scattered = by(ExpertKernels::kScatterMoe, job);
  CHECK(saved_bytes(scattered, "layer.ffn") - saved_bytes(job, "layer.ffn") ==
        kLayers * kRows * (2 * kFfn + kPlaces));
  CHECK(saved_bytes(scattered, "layer.norm") - saved_bytes(job, "layer.norm") ==
        kLayers * 2 * kHidden * kTokens);
  const auto most = [](const Job& of) {
    return most_bytes(of, recomputing(), MomentKind::kBackward, "gradients.of_weights");
  };
  CHECK(most(job) < 2 * kGateUp);
  CHECK(most(scattered) >= 2 * kGateUp);
  CHECK(most(scattered) < 2 * (kGateUp + kDown));
}

// Of 4 bits both weights of a layer are unpacked, with the scales of blocks in fp32 where these are
// quantized as well; without adapters on them they are saved.
TEST_CASE("ScatterMoE's experts of 4 bits are unpacked, and stay where they have no adapters") {
  Job job = by(ExpertKernels::kScatterMoe, with_attention_adapters(qwen3_moe()));
  job.quantized = {.kind = Quantization::kNf4, .is_double = true};
  job.profile.quantizes_experts = true;
  constexpr std::int64_t kWhole = 2 * (kGateUp + kDown);
  CHECK(saved_bytes(job, "weights_dequantized") == kLayers * kWhole);
  const std::int64_t recomputed =
      most_bytes(job, recomputing(), MomentKind::kReplay, "weights_dequantized");
  CHECK(recomputed >= kWhole);
  CHECK(recomputed <= kWhole + 4 * kGateUp / 64);
  const Job adapted = with_expert_adapters(job);
  CHECK(saved_bytes(adapted, "weights_dequantized") == 0);
}

// Of rank `wide` on gate and up, `narrow` on down, in bf16.
constexpr std::int64_t factors(std::int64_t wide, std::int64_t narrow) {
  return 2 * kExperts * (wide * (kHidden + 2 * kFfn) + narrow * (kFfn + kHidden));
}

// What of a layer's experts the same functions save with adapters of rank 4 is 3,803,200 bytes with
// the tokens: both factors of either product in bf16, and what is saved without. peft has those of
// gate and up together by twice the rank where they are named apart.
TEST_CASE("ScatterMoE's adapters keep copies of their factors, and no whole weights") {
  CHECK(3'688'512 + factors(4, 4) == 3'803'200);
  const Job plain = by(ExpertKernels::kScatterMoe, with_attention_adapters(qwen3_moe()));
  const Job adapted = by(ExpertKernels::kScatterMoe, with_expert_adapters(qwen3_moe()));
  CHECK(saved_bytes(adapted, "layer.ffn") - saved_bytes(plain, "layer.ffn") ==
        kLayers * factors(2 * 4, 4));
  // Grouped products read the sum of the weights and the factors' product, whole.
  const Job grouped = with_expert_adapters(qwen3_moe());
  CHECK(saved_bytes(grouped, "layer.ffn") - saved_bytes(adapted, "layer.ffn") >
        kLayers * 2 * (kGateUp + kDown));
}

// Few experts of matrices of 20 million elements have a forward pass of three kernels: copies of
// both factors, the inner product and the outer one are made and go.
TEST_CASE("adapters of few wide experts run beside their product") {
  Job job = by(ExpertKernels::kScatterMoe, with_expert_adapters(qwen3_moe()));
  const auto events = [&](std::int64_t ffn) {
    job.model.moe.expert_ffn = ffn;
    return trainer_run(job, trainer_plan(0), 1).events.size();
  };
  CHECK(events(20'480) - events(19'456) == kLayers * 2 * 4);
  CHECK(events(19'456) == events(9'728));
}

// Bytes as PyTorch's allocator has them.
struct Held {
  std::int64_t now = 0;
  std::int64_t most = 0;
  std::map<std::int64_t, std::int64_t> by_id;

  void add(eager::Graph& graph) {
    most = now;
    for (const AllocationEvent& event : graph.tape.take_events()) {
      const std::int64_t bytes = (event.bytes + 511) / 512 * 512;
      now += event.bytes > 0 ? bytes : -by_id[event.id];
      by_id[event.id] = bytes;
      most = std::max(most, now);
    }
  }
};

struct Measured {
  huggingface::ExpertSizes sizes;
  std::int64_t rank = 0;
  bool is_trained = false;
  bool is_packed = false;
  std::int64_t kept = 0;
  std::int64_t forward = 0;
  std::int64_t backward = 0;
  std::int64_t unsplit = 0;  // the rest of a block that the allocator did not divide
};

// A leaf without memory of its own, whose gradient is held.
eager::Tensor leaf(eager::Graph& graph, eager::Tensors& gradients, std::int64_t elements,
                   DType dtype) {
  eager::Tensor tensor;
  tensor.elements = elements;
  tensor.dtype = dtype;
  return graph.make_leaf(tensor, [&gradients](eager::Tensor taken) { gradients.push_back(taken); });
}

huggingface::Experts experts_of(eager::Graph& graph, eager::Tensors& gradients,
                                const Measured& measured) {
  huggingface::Experts experts;
  const auto weights = [&](eager::Parameter& parameter, std::int64_t width) {
    const std::int64_t elements = measured.sizes.experts * measured.sizes.hidden * width;
    parameter.data.elements = elements;
    if (measured.is_trained) {
      parameter.data = leaf(graph, gradients, elements, DType::kBf16);
    }
  };
  weights(experts.gate_up, 2 * measured.sizes.ffn);
  weights(experts.down, measured.sizes.ffn);
  if (measured.is_packed) {
    experts.quantized = {.kind = Quantization::kNf4, .is_double = true};
  }
  if (measured.rank > 0) {
    const auto factor = [&](eager::Parameter& parameter, std::int64_t width) {
      const std::int64_t inner = measured.sizes.experts * measured.rank;
      parameter.data = leaf(graph, gradients, inner * width, DType::kFp32);
    };
    factor(experts.down_a, measured.sizes.ffn);
    factor(experts.down_b, measured.sizes.hidden);
    factor(experts.gate_up_a, measured.sizes.hidden);
    factor(experts.gate_up_b, 2 * measured.sizes.ffn);
  }
  return experts;
}

// Forward, the product of its output with a number, and backward: bytes that are within what
// numbers by expert and by rank take, which are not counted.
void check_measured(const Measured& measured) {
  const huggingface::ExpertSizes& sizes = measured.sizes;
  CAPTURE(sizes.experts);
  CAPTURE(measured.rank);
  CAPTURE(measured.is_trained);
  CAPTURE(measured.is_packed);
  eager::Graph graph(0, 132);
  const eager::InRow row(graph.tape, huggingface::kFfnRow);
  eager::Tensors gradients;
  const huggingface::Experts experts = experts_of(graph, gradients, measured);
  const eager::Tensor hidden = leaf(graph, gradients, sizes.tokens * sizes.hidden, DType::kBf16);
  const eager::Tensor weights = leaf(graph, gradients, sizes.tokens * sizes.chosen, DType::kBf16);
  const std::int64_t by_expert = std::max<std::int64_t>(8 * sizes.experts, 512);
  const std::int64_t by_rank = measured.is_packed ? 2 * 8 * sizes.experts * measured.rank : 0;
  const auto is_near = [&](std::int64_t expected, std::int64_t counted) {
    const std::int64_t less = expected - measured.unsplit - counted;
    return less >= 0 && less <= by_expert + by_rank;
  };
  Held held;
  eager::Tensor output = huggingface::scattermoe_forward(graph, experts, hidden, weights, sizes);
  held.add(graph);
  // B of the gate and up projections as peft's call holds it, which these calls did not.
  const std::int64_t of_peft = 2 * 2 * sizes.ffn * sizes.experts * measured.rank;
  CHECK(is_near(measured.kept, held.now));
  CHECK(is_near(measured.forward + of_peft, held.most));
  output = eager::scale(graph, output);
  held.add(graph);
  eager::Tensor gradient;
  gradient.elements = sizes.tokens * sizes.hidden;
  graph.backward(output, gradient);
  held.add(graph);
  CHECK(is_near(measured.backward, held.most));
}

// axolotl's functions with their own kernels on one H200: what a forward pass keeps with its
// output, and the most bytes of either pass. The last two were predicted before they ran.
TEST_CASE("ScatterMoE's functions take what was measured of them") {
  constexpr huggingface::ExpertSizes kFew = {
      .tokens = 2'048, .hidden = 1'024, .ffn = 512, .experts = 8, .chosen = 2};
  constexpr huggingface::ExpertSizes kMany = {
      .tokens = 4'096, .hidden = 2'048, .ffn = 768, .experts = 128, .chosen = 8};
  check_measured(
      {.sizes = kFew, .kept = 29'426'176, .forward = 29'426'176, .backward = 46'211'584});
  check_measured({.sizes = kFew,
                  .is_trained = true,
                  .kept = 29'426'176,
                  .forward = 29'426'176,
                  .backward = 50'405'888});
  check_measured({.sizes = kFew,
                  .rank = 16,
                  .kept = 30'343'680,
                  .forward = 30'343'680,
                  .backward = 43'983'360});
  check_measured({.sizes = kFew,
                  .is_packed = true,
                  .kept = 54'624'768,
                  .forward = 54'624'768,
                  .backward = 71'410'176});
  check_measured({.sizes = kFew,
                  .rank = 16,
                  .is_packed = true,
                  .kept = 30'378'496,
                  .forward = 56'461'824,
                  .backward = 56'863'232});
  check_measured({.sizes = kMany,
                  .is_packed = true,
                  .kept = 1'561'068'544,
                  .forward = 1'561'068'544,
                  .backward = 2'030'896'128});
  check_measured({.sizes = kMany,
                  .rank = 16,
                  .is_packed = true,
                  .kept = 380'404'736,
                  .forward = 1'614'578'688,
                  .backward = 1'385'006'080,
                  .unsplit = 1'048'576});
}

// mlp_forward as megablocks' layers.py has it, between stand-ins for its kernels that save as much,
// keeps 5,773,344 bytes on a CPU: rows of tokens, gate and up as one, five tensors of an expert's
// width, the output, and of every row its place in int32 and its weight. Every expert has room for
// its share alone: of 6 experts 170 rows each, 1,020 of 1,024.
TEST_CASE("megablocks' experts keep what gpt-oss's do, for as many rows as have room") {
  constexpr std::int64_t kRow = 2 * kHidden + 4 * kFfn + 5 * 2 * kFfn + 2 * kHidden;
  constexpr std::int64_t kBins = 4 * kExperts;  // which are not counted
  CHECK(kRows * (kRow + 4 + 2) + kBins == 5'773'344);
  const Job job = gpt_oss();
  const Job batched = by(ExpertKernels::kMegablocks, job);
  CHECK(saved_bytes(batched, "layer.ffn") - saved_bytes(job, "layer.ffn") == kLayers * 4 * kRows);
  Job uneven = batched;
  uneven.model.moe.num_experts = 6;
  Job even = batched;
  even.model.moe.num_experts = 4;
  CHECK(saved_bytes(even, "layer.ffn") - saved_bytes(uneven, "layer.ffn") == kLayers * 4 * kRow);
}

// A norm keeps its input and a root for every row; the rest is as it was.
TEST_CASE("the Hub's norms are Liger's, and its rotary embedding keeps no more than PyTorch's") {
  Job job = small_trainer_job(1);
  const auto with = [&](LigerKernel kernels) {
    Job with_kernels = job;
    with_kernels.profile.liger_kernel = kernels;
    return with_kernels;
  };
  const Job hub = with(LigerKernel::kNorms);
  CHECK(saved_bytes(hub, "layer.norm") == saved_bytes(with(LigerKernel::kOn), "layer.norm"));
  CHECK(saved_bytes(hub, "layer.ffn") == saved_bytes(job, "layer.ffn"));
  CHECK(saved_bytes(hub, "layer.attention") == saved_bytes(job, "layer.attention"));
  CHECK(saved_bytes(hub, "layer.norm") < saved_bytes(job, "layer.norm"));
  job.model.family = "qwen3_next";  // whose norms no kernel of the Hub takes the place of
  CHECK(saved_bytes(with(LigerKernel::kNorms), "layer.norm") == saved_bytes(job, "layer.norm"));
}

// PyTorch's gated norm keeps its input in fp32, a root for every row, the normed value and its
// product with the weight in bf16, the gate and its activation in fp32; axolotl's kernel keeps the
// input, the gate and a root for every row.
TEST_CASE("axolotl's Liger has one kernel for the norms and gates of Qwen3.5's delta nets") {
  Job job = small_delta_job("qwen3_5_text");
  const std::int64_t eager = saved_bytes(job, "layer.recurrence");
  job.profile.liger_kernel = LigerKernel::kThrough082;
  std::int64_t values = 0;
  for (const LayerSpec& layer : job.model.layers) {
    values += layer.mixer == MixerKind::kGatedDelta ? kTokens * job.model.delta.value_width() : 0;
  }
  CHECK(values > 0);
  CHECK(eager - saved_bytes(job, "layer.recurrence") ==
        (4 + 2 + 2 + 4 + 4) * values - (2 + 2) * values);
}

TEST_CASE("kernels from elsewhere are refused where they were not read") {
  using enum ExpertKernels;
  CHECK(refusal(by(kScatterMoe, qwen3_moe())).empty());
  CHECK(refusal(by(kMegablocks, gpt_oss())).empty());
  CHECK(refusal(by(kScatterMoe, gpt_oss())).find("scattermoe with experts like gpt-oss's") !=
        std::string::npos);
  CHECK(refusal(by(kMegablocks, qwen3_moe())).find("megablocks with model.family qwen3_moe") !=
        std::string::npos);
  Job eager = by(kScatterMoe, qwen3_moe());
  eager.profile.eager_experts = true;
  CHECK(refusal(eager).find("scattermoe with eager_experts") != std::string::npos);
  Job packed = by(kScatterMoe, with_attention_adapters(qwen3_moe()));
  packed.quantized.kind = Quantization::kInt8;
  packed.profile.quantizes_experts = true;
  CHECK(refusal(packed).find("experts of 8 bits") != std::string::npos);
  Job unread = small_trainer_job(1);
  unread.profile.liger_kernel = LigerKernel::kNorms;
  CHECK(refusal(unread).empty());
  unread.profile.weights_dtype = DType::kFp32;
  CHECK(refusal(unread).find("queries and cosines of one type") != std::string::npos);
  unread.profile.weights_dtype = DType::kBf16;
  Job sharded = small_trainer_job(2);
  sharded.profile.liger_kernel = LigerKernel::kNorms;
  Plan offloaded = trainer_plan(3);
  CHECK(refusal(sharded, offloaded).empty());
  offloaded.offload = {.optimizer = 1, .parameters = true};
  CHECK(refusal(sharded, offloaded).find("no kernels of the Hub for parameters on the host") !=
        std::string::npos);
  unread.model.family = "olmo2";
  CHECK(refusal(unread).find("norms with model.family olmo2") != std::string::npos);
}

}  // namespace
}  // namespace shardplan::transformers
