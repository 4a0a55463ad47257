// Every number counts bytes of one element; e is the size of an activation.
#include "estimator/frameworks/pieces/huggingface/adapter_kernels.h"

#include "estimator/frameworks/pieces/huggingface/linear.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/plan/number.h"
#include "estimator/plan/units.h"

namespace shardplan::huggingface {
namespace {

// bitsandbytes 0.50: 4-bit weights are unpacked for a product in either direction (autograd/
// _functions.py MatMul4Bit), half a byte and a scale of 64 read, 2 written; with scales quantized
// as well these are made fp32 first, 1 and 4 a block. LLM.int8 (MatMul8bitLt) unpacks in backward
// to the type of its input, `input_bytes`: 1 read, one written, and scaled in place.
Passes unpacked_weight(const QuantizedWeights& quantized, double input_bytes) {
  const double scales = quantized.is_double ? (1 + 4 + 4) / 64. : 4 / 64.;
  const KernelBytes packed = {.fused = 0.5 + scales + 2};
  switch (quantized.kind) {
    case Quantization::kNone:
    case Quantization::kGptq:
    case Quantization::kAwq: return {};
    case Quantization::kNf4:
    case Quantization::kFp4: return {.forward = packed, .backward = packed};
    case Quantization::kInt8:
      return {.backward = {.streamed = 2 * input_bytes, .converted = 1 + input_bytes}};
  }
  return {};
}

// Per element of a linear layer's input and output.
struct AroundLinear {
  Passes input = {};
  Passes output = {};
};

// Bytes an element of what LLM.int8 takes for a layer's input and gives back. The norms' outputs
// are fp32 where their weights are, so the FFN is; attention's output is not.
double int8_input_bytes(const BlockContext& context, const LinearWeight& weight) {
  return has_wide_stream(context.job, context.plan) && weight.place != LinearLayer::kOutput
             ? 4
             : context.element_bytes;
}

// LLM.int8: its input to fp16, magnitudes, their comparison, whether there is any, and integers
// with their scales (int8_vectorwise_quant); sums to fp16 and to the input's type.
AroundLinear around_quantized(const BlockContext& context, const LinearWeight& weight) {
  const Quantization kind = context.job.quantized.kind;
  if (kind == Quantization::kInt8) {
    const double e = int8_input_bytes(context, weight);
    return {.input = {.forward = {.streamed = 4 + 3 + 1, .converted = e + 2 + 3}},
            .output = {.forward = {.converted = 6 + 2 + e}}};
  }
  const bool casts = kind != Quantization::kNone && has_wide_stream(context.job, context.plan);
  constexpr KernelBytes kCast = {.converted = 6};  // Linear4bit.forward: to the input's type
  return casts ? AroundLinear{.output = {.forward = kCast, .backward = kCast}} : AroundLinear{};
}

// peft 0.21 tuners/lora/layer.py and bnb.py, Linear.forward. The input becomes A's type, which
// autocast casts back; of a 4-bit base it stays as it is, and the base's output is copied. B's
// output is scaled and added. Backward the casts of the input's gradient, and its sum with the
// base's.
AroundLinear around_adapter(const BlockContext& context) {
  const Job& job = context.job;
  const double e = context.element_bytes;
  const bool is_quantized = job.quantized.kind != Quantization::kNone;
  const bool casts =
      uses_autocast(job, context.plan) && !is_quantized && job.adapters.dtype == DType::kFp32;
  const double dropped = job.adapters.dropout > 0 ? 2 * e + 1 : 0;
  AroundLinear around = {
      .input = {.forward = {.streamed = dropped, .converted = casts ? 12. : 0.},
                .backward = {.streamed = 3 * e + dropped, .converted = casts ? 12. : 0.}},
      .output = {.forward = {.streamed = 2 * e + 3 * e}, .backward = {.streamed = 2 * e}}};
  around.output.forward.streamed += is_quantized ? 2 * e : 0;
  return around;
}

BlockTime around(const BlockContext& context, const LinearWeight& weight,
                 const AroundLinear& kernels) {
  BlockTime time = memory_bound(context, number(context.tokens * weight.inputs), kernels.input);
  add(time, memory_bound(context, number(context.tokens * weight.outputs), kernels.output));
  return time;
}

// DoRA's forward pass makes the adapter's whole product, by way of an identity matrix that is
// written and cast, casts it and the base's weight, scales, adds and reads their sum for its norm.
// Around outputs the base's and the adapter's are scaled into fp32, the latter again, added and
// added to the result, which is cast; backward each is scaled, and multiplied and summed for the
// scale (peft 0.21 tuners/lora/dora.py DoraLinearLayer).
BlockTime decomposition(const BlockContext& context, const LinearWeight& weight) {
  const std::int64_t rank = context.job.adapters.rank;
  const Precision precision = context.plan.precision;
  const double e = context.element_bytes;
  constexpr double kSingle = 4;
  BlockTime product =
      linear(context, {.m = weight.inputs, .n = rank, .k = weight.inputs}, precision);
  add(product, linear(context, {.m = weight.inputs, .n = weight.outputs, .k = rank}, precision));
  BlockTime time;
  time.forward_s = product.forward_s;
  time.forward_flops = product.forward_flops;
  add(time, memory_bound(context, number(weight.inputs * weight.inputs),
                         {.forward = {.streamed = kSingle, .converted = kSingle + e}}));
  add(time, memory_bound(
                context, number(weight.elements()),
                {.forward = {.streamed = (2 + 3 + 1) * kSingle, .converted = 2 * (e + kSingle)}}));
  add(time,
      memory_bound(context, number(context.tokens * weight.outputs),
                   {.forward = {.streamed = 2 * (e + kSingle) + (2 + 3 + 1) * kSingle - 2 * e},
                    .backward = {.streamed = 2 * (2 * (kSingle + e + kSingle) + kSingle),
                                 .converted = 2 * (e + kSingle)}}));
  return time;
}

// peft 0.21 tuners/oft/layer.py: products of blocks; the input to the parameter's type and back to
// that of products, a copy that lies otherwise, then the same casts again; backward alike.
BlockTime rotation(const BlockContext& context, const LinearWeight& weight) {
  const std::int64_t block = rotated_together(weight.inputs, context.job.adapters.rank);
  BlockTime time = linear(
      context, {.m = context.tokens * div_exact(weight.inputs, block), .n = block, .k = block},
      context.plan.precision);
  const KernelBytes around = {.streamed = 2 * context.element_bytes, .converted = 4 * 6};
  add(time, memory_bound(context, number(context.tokens * weight.inputs),
                         {.forward = around, .backward = around}));
  return time;
}

// AdaLoRA's output is scaled, divided into fp32 and added from there; backward its gradient goes
// the same way (peft 0.20 tuners/adalora/layer.py SVDLinear.forward). Over LoRA's scaling and sum.
KernelBytes divided_output(const BlockContext& context) {
  const double e = context.element_bytes;
  return {.streamed = 2 * e, .converted = (e + 4) + 4};
}

// Behind an FFN of that last layer: a product to `rank` numbers and one back; the output to fp32
// and twice to the type of products, gelu, and a sum.
BlockTime bottleneck(const BlockContext& frozen, const LinearWeight& weight) {
  BlockContext context = frozen;
  context.trains_weights = true;
  const std::int64_t rank = context.job.adapters.rank;
  const Precision precision = context.plan.precision;
  const double e = context.element_bytes;
  BlockTime time =
      linear(context, {.m = context.tokens, .n = rank, .k = weight.outputs}, precision);
  add(time, linear(context, {.m = context.tokens, .n = weight.outputs, .k = rank}, precision));
  add(time, memory_bound(context, number(context.tokens * weight.outputs),
                         {.forward = {.streamed = 3 * e, .converted = 3 * (e + 4)},
                          .backward = {.streamed = 3 * e, .converted = 3 * (e + 4)}}));
  add(time, memory_bound(context, number(context.tokens * rank),
                         {.forward = {.streamed = 2 * e}, .backward = {.streamed = 3 * e}}));
  return time;
}

BlockTime adapter(const BlockContext& frozen, const LinearWeight& weight) {
  BlockContext context = frozen;
  context.trains_weights = true;
  if (context.job.adapters.kind == AdapterKind::kOft) {
    return rotation(context, weight);
  }
  const std::int64_t rank = context.job.adapters.rank;
  const Precision precision = context.plan.precision;
  BlockTime time = linear(context, {.m = context.tokens, .n = rank, .k = weight.inputs}, precision);
  add(time, linear(context, {.m = context.tokens, .n = weight.outputs, .k = rank}, precision));
  add(time, around(context, weight, around_adapter(context)));
  if (context.job.adapters.decomposes_weights) {
    add(time, decomposition(frozen, weight));
  }
  if (context.job.adapters.kind == AdapterKind::kAdaLora) {
    const KernelBytes around = divided_output(context);
    add(time, memory_bound(context, number(context.tokens * weight.outputs),
                           {.forward = around, .backward = around}));
  }
  return time;
}

// The gradient of LLM.int8's input is a product of the input's type, since autograd functions run
// backward without autocast (MatMul8bitLt.backward): in fp32, outside the tensor cores as PyTorch
// has it by default, where the input is.
BlockTime wide_gradient(const BlockContext& context, const LinearWeight& weight) {
  BlockTime time;
  if (context.job.quantized.kind == Quantization::kInt8 && int8_input_bytes(context, weight) == 4) {
    const ProductShape shape = {.m = context.tokens, .n = weight.outputs, .k = weight.inputs};
    BlockContext unnoted = context;
    unnoted.log = nullptr;
    unnoted.mix = nullptr;
    time.backward_input_s = linear(unnoted, shape, Precision::kFp32).backward_input_s -
                            linear(unnoted, shape, context.plan.precision).backward_input_s;
    note(context, PieceKind::kProduct, time);
  }
  return time;
}

BlockTime beside_product(const BlockContext& context, const LinearWeight& weight) {
  BlockTime time;
  const Job& job = context.job;
  if (casts_weights(job, context.plan)) {
    add(time, memory_bound(context, number(weight.elements()), {.forward = {.converted = 6}}));
  }
  if (job.quantized.is_on(weight.place)) {
    add(time, memory_bound(context, number(weight.elements()),
                           unpacked_weight(job.quantized, int8_input_bytes(context, weight))));
    add(time, around(context, weight, around_quantized(context, weight)));
    add(time, wide_gradient(context, weight));
  }
  if (has_adapter(job, weight.place)) {
    add(time, adapter(context, weight));
  }
  if (has_bottleneck(job, weight.place)) {
    add(time, bottleneck(context, weight));
  }
  return time;
}

// ScatterMoE's adapters are products of rank r of every row of an expert.
BlockTime scattered_adapters(const BlockContext& frozen, const ExpertAdapters& ranks) {
  BlockContext context = frozen;
  context.trains_weights = true;
  const ModelSpec& model = context.model();
  const std::int64_t rows = context.tokens * model.moe.topk;
  BlockTime time;
  const auto add_adapter = [&](std::int64_t rank, std::int64_t inputs, std::int64_t outputs) {
    if (rank > 0) {
      const Precision precision = context.plan.precision;
      add(time, linear(context, {.m = rows, .n = rank, .k = inputs}, precision));
      add(time, linear(context, {.m = rows, .n = outputs, .k = rank}, precision));
    }
  };
  add_adapter(ranks.gate_up, model.hidden, 2 * model.moe.expert_ffn);
  add_adapter(ranks.down, model.moe.expert_ffn, model.hidden);
  return time;
}

// peft adds an adapter's product to the whole weight of all experts, once when it is put in place
// and once when it is read; backward the weight's whole gradient is read for either factor.
BlockTime adapted_experts(const BlockContext& context) {
  const ModelSpec& model = context.model();
  const ExpertAdapters ranks = expert_adapters(context.job);
  if (context.job.profile.expert_kernels == ExpertKernels::kScatterMoe) {
    return scattered_adapters(context, ranks);
  }
  const std::int64_t columns = model.moe.num_experts * model.hidden * model.moe.expert_ffn;
  const std::int64_t elements =
      (ranks.gate_up > 0 ? 2 * columns : 0) + (ranks.down > 0 ? columns : 0);
  const double e = context.element_bytes;
  return memory_bound(context, number(elements),
                      {.forward = {.streamed = 2 * 2 * e}, .backward = {.streamed = (1 + 2) * e}});
}

bool is_of_ffn(LinearLayer place) {
  using enum LinearLayer;
  return place == kGate || place == kUp || place == kDown || place == kSharedGate;
}

}  // namespace

void add_beside_products(const BlockContext& context, const LayerSpec& layer, LayerParts& parts) {
  for (const LinearWeight& weight : linear_weights(context.model(), layer)) {
    const bool is_ffn = is_of_ffn(weight.place);
    begin_part(context, is_ffn ? "ffn" : "projections");
    add(is_ffn ? parts.ffn : parts.projections, beside_product(context, weight));
  }
  if (layer.is_moe) {
    begin_part(context, "ffn");
    add(parts.ffn, adapted_experts(context));
  }
}

}  // namespace shardplan::huggingface
