#include "estimator/frameworks/torchtitan/ends.h"

namespace shardplan::torchtitan {
namespace {

constexpr std::int64_t kWiden = 2;  // fp32 for bf16

// All-gather and reduce-scatter of a sequence along tp, as in a layer.
TapeTensor gather(TitanTape& tape, const TitanSizes& sizes) {
  TapeTensor gathered = tape.make(sizes.gathered);
  if (sizes.joins_batch) {
    tape.replace(gathered, sizes.gathered);
  }
  return gathered;
}
TapeTensor reduce(TitanTape& tape, const TitanSizes& sizes, TapeTensor& partial) {
  TapeTensor input = tape.make(sizes.gathered);
  const TapeTensor reduced = tape.make(sizes.sequence);
  tape.free(input, partial);
  return reduced;
}

}  // namespace

TapeTensor TitanEmbedding::forward() {
  if (!sizes_.tensor_parallel) {
    return tape_.make(sizes_.residual);
  }
  TapeTensor partial = tape_.make(sizes_.gathered);
  return reduce(tape_, sizes_, partial);
}

// Under tp the dense gradient of the whole table comes first, then this rank's rows.
TapeTensor TitanEmbedding::backward(TapeTensor& gradient) {
  TapeTensor gathered;
  if (sizes_.tensor_parallel) {
    gathered = gather(tape_, sizes_);
    tape_.free(gradient);
  }
  TapeTensor of_table = tape_.make((sizes_.autocast ? kWiden : 1) * sizes_.whole_table);
  TapeTensor workspace = tape_.make(sizes_.table_workspace);
  tape_.free(workspace, gathered, gradient);
  if (sizes_.tensor_parallel && !sizes_.keeps_whole_table_gradient) {
    tape_.replace(of_table, sizes_.table);
  }
  return of_table;
}

void TitanHead::forward(HeadTensors& head, bool saves) {
  head.norm = tape_.make(sizes_.residual);
  head.statistics = tape_.make(sizes_.statistics);
  if (sizes_.tensor_parallel) {
    head.gathered = gather(tape_, sizes_);
  }
  if (sizes_.autocast) {
    head.casts.weight = tape_.make(sizes_.table);
    head.casts.input = tape_.make(sizes_.sequence);
  }
  head.logits = tape_.make_product(sizes_.logits);
  if (!saves || sizes_.tensor_parallel || sizes_.autocast) {
    tape_.free(head.norm);
  }
  if (!saves) {
    tape_.free(head.statistics, head.gathered);
  }
}

void TitanHead::free_logits(HeadTensors& head) {
  if (!keeps_logits_) {
    tape_.free(head.logits);
  }
}

void TitanHead::loss(HeadTensors& head) {
  const std::int64_t wide = kWiden * sizes_.logits;
  if (compiles_loss_ && !sizes_.tensor_parallel) {
    return;  // one kernel keeps a few numbers a token
  }
  TapeTensor logits = tape_.make(wide);
  if (sizes_.tensor_parallel && !compiles_loss_) {
    TapeTensor shifted = tape_.make(wide);
    TapeTensor powers = tape_.make(wide);
    tape_.free(powers);
    head.log_softmax = tape_.make(wide);
    tape_.free(shifted);
  } else {
    head.log_softmax = tape_.make(wide);
  }
  tape_.free(logits);
  free_logits(head);
}

TapeTensor TitanHead::loss_backward(HeadTensors& head) {
  const std::int64_t wide = kWiden * sizes_.logits;
  if (compiles_loss_) {
    const TapeTensor of_logits = tape_.make(sizes_.logits);
    tape_.free(head.log_softmax);
    free_logits(head);
    return of_logits;
  }
  TapeTensor of_loss = tape_.make(wide);
  TapeTensor of_wide = tape_.make(wide);
  if (sizes_.tensor_parallel) {
    tape_.replace(of_wide, wide);
    tape_.replace(of_wide, wide);
  }
  tape_.free(of_loss, head.log_softmax);
  const TapeTensor of_logits = tape_.make(sizes_.logits);
  tape_.free(of_wide);
  return of_logits;
}

TapeTensor TitanHead::backward(HeadTensors& head, TapeTensor& of_logits, TapeTensor& of_table,
                               bool accumulates) {
  of_table = tape_.make_product(sizes_.table);
  TapeTensor of_norm = tape_.make(sizes_.gathered);
  tape_.free(of_logits, head.casts.weight, head.casts.input, head.norm, head.gathered);
  if (sizes_.autocast) {
    tape_.replace(of_norm, sizes_.residual);
    tape_.replace(of_table, kWiden * sizes_.table);
    if (accumulates) {
      tape_.free(of_table);
    }
  }
  if (sizes_.tensor_parallel) {
    of_norm = reduce(tape_, sizes_, of_norm);
  }
  const TapeTensor gradient = tape_.make(sizes_.residual);
  tape_.free(of_norm, head.input, head.statistics);
  return gradient;
}

}  // namespace shardplan::torchtitan
