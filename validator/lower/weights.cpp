// Weight gradients that do not run within backward. Schedules that split backward (zero bubble,
// arXiv 2401.10241) give them an action of their own; until then both sides of every product stay:
// inputs that forward kept in a ring of their own, what backward wrote in a second one. Under
// sequence parallelism the shards stay, and are gathered again. The head's gradient was taken with
// the loss, those of norms come with their inputs' gradients: neither waits.
#include "validator/lower/weights.h"

#include "validator/lower/ops.h"
#include "validator/lower/tensor.h"

namespace shardplan {
namespace {

View all_rows(Lowering& l, const Operand& side, GatheredFor what) {
  if (side.all.present()) {
    return side.all;
  }
  return side.gathered_name.empty() ? side.own : gathered(l, side.own, side.gathered_name, what);
}

void emit_weight_gradient(Lowering& l, const PlacedWeight& w, const Operand& dy, const Operand& x,
                          const std::string& label) {
  const FrameScope scope(l.builder);
  const View all_dy = all_rows(l, dy, GatheredFor::kProduct);
  linear_weight_gradient(l, w, all_dy, all_rows(l, x, GatheredFor::kWeightGradient), label);
}

}  // namespace

View for_weight_gradient(Lowering& l, const TensorSpec& spec) {
  return l.pending == nullptr ? l.builder.push(spec) : l.builder.keep(l.pending->slot, spec);
}

View next_residual_gradient(Lowering& l, const View& dx, bool leaves_layer) {
  if (l.pending == nullptr) {
    return dx;
  }
  if (leaves_layer && l.layer == l.pending->first_layer && l.pending->input_gradient.present()) {
    return l.pending->input_gradient;
  }
  return for_weight_gradient(l, temporary("output_gradient", dx.rows, dx.cols));
}

void at_weight_gradients(Lowering& l, std::function<void(Lowering&)> work) {
  if (l.pending == nullptr) {
    work(l);
    return;
  }
  l.pending->work.push_back([work = std::move(work), layer = l.layer](Lowering& later) {
    later.layer = layer;
    work(later);
  });
}

void weight_gradient(Lowering& l, const PlacedWeight& w, const Operand& dy, const Operand& x,
                     const std::string& label) {
  if (l.pending == nullptr) {
    emit_weight_gradient(l, w, dy, x, label);
    return;
  }
  const Operand dy_shard{.own = dy.own, .gathered_name = dy.gathered_name};
  const Operand x_shard{.own = x.own, .gathered_name = x.gathered_name};
  at_weight_gradients(l, [w, dy_shard, x_shard, label](Lowering& later) {
    emit_weight_gradient(later, w, dy_shard, x_shard, label);
  });
}

}  // namespace shardplan
