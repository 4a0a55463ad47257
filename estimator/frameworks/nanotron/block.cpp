#include "estimator/frameworks/nanotron/block.h"

namespace shardplan::nanotron {

BlockRow& keep_weight_gradient(RowList& rows, std::string_view name, std::int64_t elements,
                               DType dtype, Step born) {
  return rows.use_as(Component::kGradients, name, elements, dtype, born, Step::kWeight,
                     "of the weight, in its dtype; until the microbatch's backward ends");
}

void add_norm(NanotronBlock& b, const NanotronNorm& rows) {
  b.rows.keep(rows.statistics, b.s.sharded_tokens, DType::kFp32,
              {.born = rows.norm, .last_forward_use = rows.norm, .dies = rows.backward},
              "u: reciprocal root mean square of the Triton kernel, fp32");
  if (b.saves_gathered()) {
    b.rows.use(rows.local_output, b.sequence(), b.s.dtype, rows.norm, rows.last_local,
               "h*u: held by the layer's forward");
    b.rows.keep(rows.output, b.full_sequence(), b.s.dtype,
                {.born = rows.product, .last_forward_use = rows.product, .dies = rows.backward},
                "h*T: gathered, saved by the linear layer (tp_recompute_allgather off)");
  } else {
    b.rows.keep(rows.output, b.sequence(), b.s.dtype,
                {.born = rows.norm, .last_forward_use = rows.last_local, .dies = rows.backward},
                "h*u: input of the linear layer");
  }
}

}  // namespace shardplan::nanotron
