// Letters: h hidden, a and k query and kv heads, d head dimension, t, c tp and cp degree.
#include "estimator/time/block_work.h"

#include <algorithm>
#include <string>

#include "estimator/plan/number.h"
#include "estimator/plan/time_constants.h"
#include "estimator/time/attention_calls.h"
#include "estimator/time/block_fp8.h"
#include "estimator/time/collective_time.h"
#include "estimator/time/elementwise.h"

namespace shardplan {
namespace {

void note_product(const BlockContext& context, const ProductShape& shape, Precision precision,
                  const BlockTime& time) {
  note(context, PieceKind::kProduct, time);
  if (context.log != nullptr) {
    TimedPiece& piece = context.log->pieces.back();
    piece.shape = (shape.count > 1 ? std::to_string(shape.count) + " x " : "") +
                  std::to_string(shape.m) + "x" + std::to_string(shape.n) + "x" +
                  std::to_string(shape.k);
    piece.is_measured = is_measured(context.gpu(), precision);
  }
}

double compute_s(const BlockTime& time) {
  return time.forward_s + time.backward_input_s + time.backward_weight_s;
}

void add_products(const BlockContext& context, double times, const BlockTime& products) {
  if (context.mix != nullptr) {
    context.mix->products_s += times * compute_s(products);
  }
}

std::int64_t token_pieces(const BlockContext& context) {
  const auto pieces = context.framework.token_pieces;
  return pieces != nullptr ? pieces(context.job, context.plan) : context.overlaps.tp_pieces;
}

// What products of experts take more than one product of all their rows, as measured rates are.
double products_apart_s(const BlockContext& context, Precision precision, std::int64_t products) {
  const auto apart = context.framework.apart_product_s;
  return products > 1 && apart != nullptr && is_measured(context.gpu(), precision)
             ? number(products) * context.gpu().constants.get()->*apart
             : 0;
}

bool adds_weight_gradients(const BlockKernels& framework, const Job& job, const Plan& plan) {
  return framework.adds_weight_gradients != nullptr ? framework.adds_weight_gradients(job, plan)
                                                    : job.profile.gradient_accumulation_fusion;
}

}  // namespace

void note(const BlockContext& context, PieceKind kind, const BlockTime& time) {
  if (context.log != nullptr) {
    context.log->pieces.push_back({.kind = kind,
                                   .part = context.log->part,
                                   .forward_s = time.forward_s,
                                   .backward_input_s = time.backward_input_s,
                                   .backward_weight_s = time.backward_weight_s,
                                   .forward_flops = time.forward_flops,
                                   .is_measured = is_calibrated(context.gpu())});
  }
}

double passes_without_gradients(const BlockKernels& framework, const Job& job) {
  return framework.forward_passes != nullptr ? framework.forward_passes(job) : 0;
}

void add_passes_without_gradients(const BlockContext& context, BlockTime& time) {
  const double passes = passes_without_gradients(context.framework, context.job);
  if (passes == 0) {
    return;
  }
  begin_part(context, "passes without gradients");
  BlockTime again;
  again.forward_s = passes * time.forward_s;
  again.forward_flops = passes * time.forward_flops;
  note(context, PieceKind::kProduct, again);
  add(time, again);
}

void note_communication(const BlockContext& context, PieceKind kind, const GroupShape& group,
                        const ForwardBackward& all, const ForwardBackward& visible) {
  if (context.log != nullptr && all.forward_s + all.backward_s > 0) {
    context.log->pieces.push_back(
        {.kind = kind,
         .part = context.log->part,
         .forward_s = visible.forward_s,
         .backward_input_s = visible.backward_s,
         .forward_hidden_s = std::max(0.0, all.forward_s - visible.forward_s),
         .backward_hidden_s = std::max(0.0, all.backward_s - visible.backward_s),
         .is_measured = is_measured(context.job.cluster, group)});
  }
}

void begin_part(const BlockContext& context, const char* part) {
  if (context.log != nullptr) {
    context.log->part = part;
  }
}

BlockContext::BlockContext(const BlockKernels& of_framework, const Job& of_job, const Plan& of_plan)
    : framework(of_framework),
      job(of_job),
      plan(of_plan),
      tokens(tokens_per_microbatch(of_job, of_plan)),
      sharded_tokens(of_plan.sequence_parallel ? div_ceil(tokens, of_plan.tp) : tokens),
      element_bytes(activation_element_bytes(of_plan)),
      kernels(of_framework.layer(of_job, of_plan)),
      overlaps(allowed_overlaps(of_job)),
      trains_weights(of_framework.trains_weights == nullptr || of_framework.trains_weights(of_job)),
      adds_weight_gradients(shardplan::adds_weight_gradients(of_framework, of_job, of_plan)),
      weight_gradient(adds_weight_gradients ? KernelBytes{}
                                            : of_framework.weight_gradient(of_job, of_plan)),
      tp(group_shape(of_job, of_plan, GroupKind::kTp)),
      cp(group_shape(of_job, of_plan, GroupKind::kCp)),
      ep(group_shape(of_job, of_plan, GroupKind::kEp)),
      etp(group_shape(of_job, of_plan, GroupKind::kEtp)) {}

void add(BlockTime& block, const BlockTime& piece, std::int64_t count) {
  const double n = number(count);
  block.forward_s += n * piece.forward_s;
  block.backward_input_s += n * piece.backward_input_s;
  block.backward_weight_s += n * piece.backward_weight_s;
  block.recompute_s += n * piece.recompute_s;
  block.forward_tp_s += n * piece.forward_tp_s;
  block.backward_tp_s += n * piece.backward_tp_s;
  block.forward_cp_s += n * piece.forward_cp_s;
  block.backward_cp_s += n * piece.backward_cp_s;
  block.forward_ep_s += n * piece.forward_ep_s;
  block.backward_ep_s += n * piece.backward_ep_s;
  block.forward_host_s += n * piece.forward_host_s;
  block.backward_host_s += n * piece.backward_host_s;
  block.recompute_host_s += n * piece.recompute_host_s;
  block.forward_flops += n * piece.forward_flops;
  block.parameters.dense += count * piece.parameters.dense;
  block.parameters.expert += count * piece.parameters.expert;
  block.parameters.linear += count * piece.parameters.linear;
}

// [rows, in] x [in, out]; input gradient [rows, out] x [out, in]; weight gradient [out, rows] x
// [rows, in]. With fusion it runs slower, as it adds to the accumulator: at a measured rate, or at
// a share of the product's; without, the weight gradient is written in the element type and added
// by a kernel of its own.
BlockTime linear(const BlockContext& context, const ProductShape& forward, Precision precision,
                 Repeats repeats) {
  const GpuSpec& gpu = context.gpu();
  const std::int64_t times = repeats.products;
  const std::int64_t rows = forward.m;
  const std::int64_t out = forward.n;
  const std::int64_t in = forward.k;
  const std::int64_t count = forward.count;
  const bool is_grouped =
      count > 1 && context.framework.has_grouped_kernels && measures_grouped(gpu);
  const double clock = is_measured(gpu, precision) ? context.clock.products : 1;
  const auto fp8_share = context.framework.fp8_rate_share;
  const double share =
      precision == Precision::kFp8 && fp8_share != nullptr ? fp8_share(context.job) : 1;
  const auto tf32 = context.framework.rounds_to_tf32;
  const bool rounds = precision == Precision::kFp32 && tf32 != nullptr && tf32(context.job);
  const auto product_s = [&](const ProductShape& shape) {
    if (is_grouped) {
      return grouped_gemm_s(gpu, shape, rows);
    }
    if (rounds) {
      return tf32_gemm_s(gpu, shape);
    }
    const double seconds = context.products != nullptr
                               ? context.products->seconds(gpu, precision, shape)
                               : gemm_s(gpu, precision, shape);
    return clock * seconds / share;
  };
  const auto backward_s = [&](GemmPass pass, std::int64_t m, std::int64_t k) {
    return product_s({.m = m, .n = in, .k = k, .count = count, .pass = pass});
  };
  const bool adds = context.adds_weight_gradients;
  const bool adds_as_measured = adds && measures_accumulation(gpu, precision);
  BlockTime once;
  once.forward_flops = forward.flops();
  const double apart_s = products_apart_s(context, precision, count);
  once.forward_s = product_s(forward) + apart_s;
  once.backward_input_s = backward_s(GemmPass::kInputGradient, rows, out) + apart_s;
  if (context.trains_weights) {
    once.backward_weight_s = backward_s(
        adds_as_measured ? GemmPass::kAccumulated : GemmPass::kWeightGradient, out, rows);
  }
  if (adds && !adds_as_measured && !is_grouped) {
    once.backward_weight_s /= gpu.constants->weight_gradient_share;
  }
  add_products(context, number(times), once);
  if (precision == Precision::kFp8) {
    const BlockTime rounding = fp8_rounding(context, forward);
    add(once, rounding);
    // The clock of measured products depends on it.
    if (context.mix != nullptr && is_measured(gpu, precision)) {
      context.mix->memory_bound_s += number(times) * compute_s(rounding);
    }
  }
  BlockTime time;
  add(time, once, times);
  if (context.trains_weights) {
    time.backward_weight_s +=
        elementwise_s(gpu, number(count * out * in * repeats.gradients) * context.weight_gradient);
  }
  note_product(context, {.m = rows, .n = out, .k = in, .count = count * times}, precision, time);
  return time;
}

BlockTime memory_bound(const BlockContext& context, double elements, const Passes& passes) {
  BlockTime time;
  time.forward_s = elementwise_s(context.gpu(), elements * passes.forward);
  time.backward_input_s = elementwise_s(context.gpu(), elements * passes.backward);
  if (context.mix != nullptr) {
    context.mix->memory_bound_s += time.forward_s + time.backward_input_s;
  }
  note(context, PieceKind::kElementwise, time);
  return time;
}

double attention_pairs(const Job& job, const LayerSpec& layer) {
  return seen_pairs(layer, number(job.sequence_length));
}

BlockTime tensor_parallel(const BlockContext& context, const ForwardBackward& visible,
                          const ForwardBackward& all) {
  const double share = context.job.profile.exposed_tp_share;
  BlockTime time;
  time.forward_tp_s = share * visible.forward_s;
  time.backward_tp_s = share * visible.backward_s;
  note_communication(context, PieceKind::kTensorParallel, context.tp, all,
                     {.forward_s = time.forward_tp_s, .backward_s = time.backward_tp_s});
  return time;
}

double gathered_element_bytes(const BlockContext& context) {
  const bool rounds_first =
      context.plan.precision == Precision::kFp8 && !context.framework.gathers_before_rounding;
  return rounds_first ? 1 : context.element_bytes;
}

namespace {

double backward_s(const BlockTime& linear) {
  return linear.backward_input_s + linear.backward_weight_s;
}

}  // namespace

bool goes_by_pieces(const BlockContext& context) {
  return context.framework.piece_kernels != nullptr && context.overlaps.tp == TpOverlap::kPieces &&
         context.plan.tp > 1 && context.plan.sequence_parallel && !context.model().is_mla() &&
         token_pieces(context) > 1;
}

ForwardBackward all_of(const RegionTimes& region) {
  return {.forward_s = region.gather.alone_s + region.scatter.alone_s,
          .backward_s = region.gather_gradient.alone_s + region.gather_again.alone_s +
                        region.scatter_gradient.alone_s};
}

VisibleRegions visible_regions(const LayerRegions& regions, double attention_backward_s) {
  const RegionTimes& a = regions.attention;
  const RegionTimes& f = regions.ffn;
  const auto share = [&](const BesideCost& cost, double compute_s) {
    return cost.alone_s > 0 ? beside_compute_s(cost, compute_s) / cost.alone_s : 0;
  };
  const double into_attention = share(f.scatter + a.gather, f.row.forward_s + a.column.forward_s);
  const double into_ffn = share(a.scatter + f.gather, a.row.forward_s + f.column.forward_s);
  const double out_of_attention =
      share(a.scatter_gradient + f.gather_gradient, backward_s(a.column) + backward_s(f.row));
  const double out_of_ffn = share(f.scatter_gradient + a.gather_gradient + f.gather_again,
                                  backward_s(f.column) + backward_s(a.row));
  const double again = share(a.gather_again, attention_backward_s);
  return {
      .attention = {.forward_s = into_attention * a.gather.alone_s + into_ffn * a.scatter.alone_s,
                    .backward_s = out_of_ffn * a.gather_gradient.alone_s +
                                  again * a.gather_again.alone_s +
                                  out_of_attention * a.scatter_gradient.alone_s},
      .ffn = {.forward_s = into_ffn * f.gather.alone_s + into_attention * f.scatter.alone_s,
              .backward_s = out_of_attention * f.gather_gradient.alone_s +
                            out_of_ffn * (f.gather_again.alone_s + f.scatter_gradient.alone_s)}};
}

namespace {

BesideCost cost_over_tp(const BlockContext& context, Collective collective, double bytes) {
  const Carrier carrier = context.plan.sequence_parallel
                              ? carrier_of(context.framework.moves_by_copies, context.tp)
                              : Carrier::kNccl;
  return collective_cost(context.job.cluster, context.tp, collective, bytes, carrier);
}

RegionTimes sequence_collectives(const BlockContext& context, const TensorParallelRegion& region) {
  const double ins = number(context.tokens * region.in);
  const double outs = number(context.tokens * region.out);
  const BesideCost gather =
      cost_over_tp(context, Collective::kAllGather, ins * region.in_element_bytes);
  return {
      .gather = gather,
      .scatter = cost_over_tp(context, Collective::kReduceScatter, outs * context.element_bytes),
      .gather_gradient =
          cost_over_tp(context, Collective::kAllGather, outs * gathered_element_bytes(context)),
      .gather_again = context.framework.keeps_gathered_input ? BesideCost{} : gather,
      .scatter_gradient =
          cost_over_tp(context, Collective::kReduceScatter, ins * context.element_bytes),
      .column = region.column,
      .row = region.row};
}

// What is left to see of a collective that is divided (kPieces) beside a product.
double visible_in_pieces_s(const BlockContext& context, const BesideCost& cost, double product_s) {
  return context.overlaps.tp == TpOverlap::kPieces
             ? in_pieces_s(cost, product_s, token_pieces(context))
             : cost.alone_s;
}

// And of a whole one (kBackward).
double visible_whole_s(const BlockContext& context, const BesideCost& cost, double product_s) {
  return context.overlaps.tp == TpOverlap::kExposed ? cost.alone_s
                                                    : beside_compute_s(cost, product_s);
}

}  // namespace

// With sequence parallelism all-gather in and reduce-scatter out; backward does the reverse and
// gathers the input once more for the weight gradient (Megatron-LM core/tensor_parallel/layers.py).
// kBackward, the same file: the gather of the input beside the input gradient, the reduction of
// that beside the weight gradient; kPieces divides the others as well (Transformer Engine,
// module/base.py, initialize_ub). Without it one all-reduce out, and one of the input gradient in
// backward.
BlockTime tensor_parallel_region(const BlockContext& context, const TensorParallelRegion& region) {
  if (context.plan.tp == 1) {
    return {};
  }
  const BlockTime& column = region.column;
  const BlockTime& row = region.row;
  const double in_bytes = number(context.tokens * region.in) * context.element_bytes;
  const double out_bytes = number(context.tokens * region.out) * context.element_bytes;
  if (!context.plan.sequence_parallel) {
    const BesideCost sum = cost_over_tp(context, Collective::kAllReduce, out_bytes);
    const double sums = context.framework.divides_by_product ? number(region.columns) : 1;
    const BesideCost sum_back = sums * cost_over_tp(context, Collective::kAllReduce, in_bytes);
    return tensor_parallel(
        context,
        {.forward_s = visible_in_pieces_s(context, sum, row.forward_s),
         .backward_s = visible_whole_s(context, sum_back, column.backward_weight_s)},
        {.forward_s = sum.alone_s, .backward_s = sum_back.alone_s});
  }
  const RegionTimes times = sequence_collectives(context, region);
  const double gathered_bytes = number(context.tokens * region.in) * region.in_element_bytes;
  if (context.region != nullptr) {
    *context.region = times;
    return context.framework.piece_kernels(context, gathered_bytes, out_bytes);
  }
  BlockTime time = tensor_parallel(
      context,
      {.forward_s = visible_in_pieces_s(context, times.gather, column.forward_s) +
                    visible_in_pieces_s(context, times.scatter, row.forward_s),
       .backward_s = visible_in_pieces_s(context, times.gather_gradient, row.backward_input_s) +
                     visible_whole_s(context, times.gather_again, column.backward_input_s) +
                     visible_whole_s(context, times.scatter_gradient, column.backward_weight_s)},
      all_of(times));
  if (context.framework.sequence_copies != nullptr) {
    add(time, context.framework.sequence_copies(context, gathered_bytes, out_bytes));
  }
  return time;
}

}  // namespace shardplan
