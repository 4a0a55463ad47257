#include "estimator/time/block_ends.h"

#include "estimator/plan/number.h"
#include "estimator/time/collective_time.h"

namespace shardplan {
namespace {

// The head's product. Where the loss takes the tokens in pieces, so does the head, and the last
// piece may be shorter (validator/lower/ends.cpp).
BlockTime head_product(const BlockContext& context, const LossKernels& loss, std::int64_t vocab,
                       Precision precision) {
  const std::int64_t rows = loss.tokens;
  const std::int64_t rest = context.tokens % rows;
  const bool is_one_gradient = loss.sums_weight_gradient;
  const auto product = [&](std::int64_t m, Repeats repeats) {
    return linear(context, {.m = m, .n = vocab, .k = context.model().hidden}, precision, repeats);
  };
  const std::int64_t pieces = context.tokens / rows;
  BlockTime time = product(rows, {.products = pieces, .gradients = is_one_gradient ? 1 : pieces});
  if (rest > 0) {
    add(time, product(rest, {.products = 1, .gradients = is_one_gradient ? 0 : 1}));
  }
  return time;
}

std::int64_t local_outputs(const BlockContext& context) {
  return context.framework.head_outputs != nullptr
             ? context.framework.head_outputs(context.job, context.plan)
             : padded_vocab(context.job, context.plan) / context.plan.tp;
}

std::int64_t local_vocab(const BlockContext& context) {
  return padded_vocab(context.job, context.plan) / context.plan.tp;
}

bool gathers_logits(const BlockContext& context) {
  return context.plan.tp > 1 && context.framework.divides_by_product;
}

BlockTime over_logits(const BlockContext& context, const Passes& kernels) {
  const std::int64_t vocab =
      gathers_logits(context) ? padded_vocab(context.job, context.plan) : local_outputs(context);
  return memory_bound(context, number(context.tokens * vocab), kernels);
}

// Every rank gets all logits, columns beside columns: a copy behind the gather.
BlockTime gathered_logits(const BlockContext& context) {
  const double bytes =
      number(context.tokens * padded_vocab(context.job, context.plan)) * context.element_bytes;
  const ForwardBackward all = {
      .forward_s = all_gather_s(context.job.cluster, context.tp, bytes, Carrier::kNccl),
      .backward_s = 0};
  BlockTime time = tensor_parallel(context, all, all);
  const double share = 1 / number(context.plan.tp);
  add(time, memory_bound(context, bytes,
                         {.forward = {.rearranged = 2}, .backward = {.rearranged = 2 * share}}));
  return time;
}

// The loss reduces maximum, sum and target logit over tp: three fp32 numbers a token.
BlockTime loss_of(const BlockContext& context, const Passes& kernels) {
  BlockTime time = over_logits(context, kernels);
  if (gathers_logits(context)) {
    add(time, gathered_logits(context));
  } else if (context.plan.tp > 1) {
    const ForwardBackward all = {
        .forward_s = all_reduce_s(context.job.cluster, context.tp, 3 * 4 * number(context.tokens)),
        .backward_s = 0};
    add(time, tensor_parallel(context, all, all));
  }
  return time;
}

LossKernels loss_kernels(const BlockContext& context) {
  return context.framework.loss(context.job, context.plan, context.tokens);
}

// The head stays in the activation type under fp8.
BlockTime logits_before(const BlockContext& context, const LossKernels& loss) {
  begin_part(context, "head");
  const ModelSpec& model = context.model();
  const Precision precision =
      context.plan.precision == Precision::kFp8 ? Precision::kBf16 : context.plan.precision;
  BlockContext of_head = context;
  of_head.trains_weights = context.trains_weights || context.job.adapters.trains_head;
  BlockTime time = head_product(of_head, loss, local_outputs(context), precision);
  add(time,
      memory_bound(context, number(context.sharded_tokens * model.hidden), context.kernels.norm));
  if (context.plan.tp > 1) {
    const ClusterSpec& cluster = context.job.cluster;
    const double bytes = number(context.tokens * model.hidden) * context.element_bytes;
    const Carrier carrier = carrier_of(context.framework.moves_by_copies, context.tp);
    const double gather_s =
        context.plan.sequence_parallel ? all_gather_s(cluster, context.tp, bytes, carrier) : 0;
    const ForwardBackward all = {
        .forward_s = gather_s,
        .backward_s = context.plan.sequence_parallel
                          ? gather_s + reduce_scatter_s(cluster, context.tp, bytes, carrier)
                          : all_reduce_s(cluster, context.tp, bytes)};
    add(time, tensor_parallel(context, all, all));
  }
  time.parameters = local_sum(context.job, context.plan, head_parameters(model));
  return time;
}

}  // namespace

LocalParameters local_sum(const Job& job, const Plan& plan,
                          const std::vector<ParameterTensor>& tensors) {
  LocalParameters sum;
  for (const ParameterTensor& tensor : tensors) {
    const std::int64_t elements = local_elements(job, plan, tensor);
    (tensor.sharding == Sharding::kExpert ? sum.expert : sum.dense) += elements;
    sum.linear += is_dense_linear(tensor) ? elements : 0;
  }
  return sum;
}

// A lookup that reads and writes the hidden state; backward adds into the table's gradient.
BlockTime embedding_time(const BlockContext& context) {
  begin_part(context, "embedding");
  const double elements = number(context.tokens * context.model().hidden);
  const bool is_whole = context.plan.tp > 1 && context.framework.divides_by_product;
  const std::int64_t rows =
      is_whole ? padded_vocab(context.job, context.plan) : local_vocab(context);
  const double table = number(rows * context.model().hidden);
  const TableGradientKernels gradient = context.framework.table_gradient(context.job, context.plan);
  BlockTime time =
      memory_bound(context, 1,
                   {.forward = elements * KernelBytes{.fused = 2 * context.element_bytes},
                    .backward = elements * gradient.token + table * gradient.table});
  if (context.plan.tp > 1 && !is_whole) {
    const ClusterSpec& cluster = context.job.cluster;
    const double bytes = elements * context.element_bytes;
    const Carrier carrier = carrier_of(context.framework.moves_by_copies, context.tp);
    const bool is_sharded = context.plan.sequence_parallel;
    const ForwardBackward all = {
        .forward_s = is_sharded ? reduce_scatter_s(cluster, context.tp, bytes, carrier)
                                : all_reduce_s(cluster, context.tp, bytes),
        .backward_s = is_sharded ? all_gather_s(cluster, context.tp, bytes, carrier) : 0};
    add(time, tensor_parallel(context, all, all));
  }
  add_passes_without_gradients(context, time);
  time.parameters = local_sum(context.job, context.plan, embedding_parameters(context.model()));
  return time;
}

BlockTime head_time(const BlockContext& context) {
  const LossKernels loss = loss_kernels(context);
  BlockTime time = logits_before(context, loss);
  add(time, loss_of(context, loss.logit));
  if (loss.has_weight_kernels) {
    const double weight = number(local_outputs(context) * context.model().hidden);
    add(time, memory_bound(context, weight, {.forward = loss.weight}));
  }
  add_passes_without_gradients(context, time);
  return time;
}

BlockTime cast_time(const BlockContext& context) {
  begin_part(context, "cast");
  return over_logits(context, context.framework.parted_loss().cast);
}

BlockTime loss_time(const BlockContext& context) {
  begin_part(context, "loss");
  return loss_of(context, context.framework.parted_loss().loss);
}

BlockTime logits_time(const BlockContext& context) {
  return logits_before(context, loss_kernels(context));
}

// A projection of 2 h to h, one layer like the last, and the head once more.
BlockTime mtp_time(const BlockContext& context, const BlockTime& layer, const BlockTime& head) {
  const ModelSpec& model = context.model();
  BlockTime time = layer;
  add(time, head);
  begin_part(context, "module projection");
  add(time, linear(context,
                   {.m = context.tokens,
                    .n = div_ceil(model.hidden, context.plan.tp),
                    .k = 2 * model.hidden},
                   context.plan.precision));
  time.parameters = local_sum(context.job, context.plan, mtp_parameters(model));
  return time;
}

}  // namespace shardplan
