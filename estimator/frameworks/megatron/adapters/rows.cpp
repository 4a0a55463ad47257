// Letters in block_rows.h; r the rank of adapters, i and o inputs and outputs of a linear layer on
// this rank, n rows of tokens that go into it, l those of A's output, m those that come out.
#include "estimator/frameworks/megatron/adapters/rows.h"

#include <algorithm>
#include <array>

#include "estimator/frameworks/megatron/blocks/linear.h"

namespace shardplan::megatron {
namespace {

struct AdapterRows {
  std::string_view dropped_input;
  std::string_view dropout_mask;
  std::string_view low_rank;
  Step forward = Step::kForwardQkv;
  Step backward = Step::kBackwardQkv;
  Step last_backward = Step::kBackwardQkv;  // of its part of the input's gradient
  bool is_behind_norm = false;              // the layer's own function returns the norm's output
};

// By AdapterPlace.
constexpr std::array<AdapterRows, 16> kRows = {{
    {.dropped_input = "adapter.qkv_dropped_input",
     .dropout_mask = "adapter.qkv_dropout_mask",
     .low_rank = "adapter.qkv_low_rank",
     .last_backward = Step::kBackwardNorm,
     .is_behind_norm = true},
    {.dropped_input = "adapter.projection_dropped_input",
     .dropout_mask = "adapter.projection_dropout_mask",
     .low_rank = "adapter.projection_low_rank",
     .forward = Step::kForwardProjection,
     .backward = Step::kBackwardProjection,
     .last_backward = Step::kBackwardProjection},
    {.dropped_input = "adapter.fc1_dropped_input",
     .dropout_mask = "adapter.fc1_dropout_mask",
     .low_rank = "adapter.fc1_low_rank",
     .forward = Step::kForwardFc1,
     .backward = Step::kBackwardFc1,
     .last_backward = Step::kBackwardFfnNorm,
     .is_behind_norm = true},
    {.dropped_input = "adapter.fc2_dropped_input",
     .dropout_mask = "adapter.fc2_dropout_mask",
     .low_rank = "adapter.fc2_low_rank",
     .forward = Step::kForwardFc2,
     .backward = Step::kBackwardFc2,
     .last_backward = Step::kBackwardFc2},
    {.dropped_input = "adapter.experts_fc1_dropped_input",
     .dropout_mask = "adapter.experts_fc1_dropout_mask",
     .low_rank = "adapter.experts_fc1_low_rank",
     .forward = Step::kForwardFc1,
     .backward = Step::kBackwardFc1,
     .last_backward = Step::kBackwardFc1},
    {.dropped_input = "adapter.experts_fc2_dropped_input",
     .dropout_mask = "adapter.experts_fc2_dropout_mask",
     .low_rank = "adapter.experts_fc2_low_rank",
     .forward = Step::kForwardFc2,
     .backward = Step::kBackwardFc2,
     .last_backward = Step::kBackwardFc2},
    {.dropped_input = "adapter.shared_fc1_dropped_input",
     .dropout_mask = "adapter.shared_fc1_dropout_mask",
     .low_rank = "adapter.shared_fc1_low_rank",
     .forward = Step::kForwardFfnNorm,
     .backward = Step::kBackwardFfnNorm,
     .last_backward = Step::kBackwardFfnNorm},
    {.dropped_input = "adapter.shared_fc2_dropped_input",
     .dropout_mask = "adapter.shared_fc2_dropout_mask",
     .low_rank = "adapter.shared_fc2_low_rank",
     .forward = Step::kForwardFfnNorm,
     .backward = Step::kBackwardFfnNorm,
     .last_backward = Step::kBackwardFfnNorm},
    {.dropped_input = "adapter.mixer_input_dropped_input",
     .dropout_mask = "adapter.mixer_input_dropout_mask",
     .low_rank = "adapter.mixer_input_low_rank",
     .last_backward = Step::kBackwardNorm,
     .is_behind_norm = true},
    {.dropped_input = "adapter.mixer_output_dropped_input",
     .dropout_mask = "adapter.mixer_output_dropout_mask",
     .low_rank = "adapter.mixer_output_low_rank",
     .forward = Step::kForwardProjection,
     .backward = Step::kBackwardProjection,
     .last_backward = Step::kBackwardProjection},
    {.dropped_input = "adapter.mixer_steps_dropped_input",
     .dropout_mask = "adapter.mixer_steps_dropout_mask",
     .low_rank = "adapter.mixer_steps_low_rank",
     .last_backward = Step::kBackwardNorm,
     .is_behind_norm = true},
    {.dropped_input = "adapter.prediction_dropped_input",
     .dropout_mask = "adapter.prediction_dropout_mask",
     .low_rank = "adapter.prediction_low_rank",
     .forward = Step::kForwardInput,
     .backward = Step::kBackwardInput,
     .last_backward = Step::kBackwardInput},
    {.dropped_input = "adapter.query_down_dropped_input",
     .dropout_mask = "adapter.query_down_dropout_mask",
     .low_rank = "adapter.query_down_low_rank",
     .last_backward = Step::kBackwardNorm},
    {.dropped_input = "adapter.query_up_dropped_input",
     .dropout_mask = "adapter.query_up_dropout_mask",
     .low_rank = "adapter.query_up_low_rank",
     .is_behind_norm = true},
    {.dropped_input = "adapter.key_value_down_dropped_input",
     .dropout_mask = "adapter.key_value_down_dropout_mask",
     .low_rank = "adapter.key_value_down_low_rank",
     .last_backward = Step::kBackwardNorm},
    {.dropped_input = "adapter.key_value_up_dropped_input",
     .dropout_mask = "adapter.key_value_up_dropout_mask",
     .low_rank = "adapter.key_value_up_low_rank",
     .is_behind_norm = true},
}};

// An adapter on its layer of this block.
struct Adapter {
  AdapterShape shape;
  const AdapterRows& names;
  AdapterTokens tokens;
};

// Dropout keeps a mask of a byte an element, and A what is left; B keeps A's output. The layer's
// own input is a row of the block.
void add_saved(MegatronBlock& block, const Adapter& adapter) {
  const AdapterRows& names = adapter.names;
  const DType dtype = block.shape.dtype;
  const std::int64_t input = adapter.tokens.input * adapter.shape.inputs;
  const std::int64_t dropped = block.job.adapters.dropout > 0 ? input : 0;
  const Life life{.born = names.forward, .last_forward_use = names.forward, .dies = names.backward};
  block.rows.keep(names.dropped_input, dropped, dtype, life, "i*n: what dropout left, saved by A");
  block.rows.keep(names.dropout_mask, dropped, DType::kBool, life, "i*n: saved by dropout");
  block.rows.keep(names.low_rank, block.job.adapters.rank * adapter.tokens.low, dtype, life,
                  "r*l: output of A, saved by B");
}

bool is_column_parallel(AdapterPlace place) {
  switch (place) {
    case AdapterPlace::kQkv:
    case AdapterPlace::kFc1:
    case AdapterPlace::kSharedFc1:
    case AdapterPlace::kMixerInput:
    case AdapterPlace::kMixerSteps:
    case AdapterPlace::kPrediction:
    case AdapterPlace::kQueryUp:
    case AdapterPlace::kKeyValueUp: return true;
    case AdapterPlace::kProjection:
    case AdapterPlace::kFc2:
    case AdapterPlace::kExpertsFc1:
    case AdapterPlace::kExpertsFc2:
    case AdapterPlace::kSharedFc2:
    case AdapterPlace::kMixerOutput:
    case AdapterPlace::kQueryDown:
    case AdapterPlace::kKeyValueDown: break;
  }
  return false;
}

bool gathers(const MegatronBlock& block, const Adapter& adapter) {
  return block.shape.gathers_sequence && adapter.tokens.gathers;
}

// Where tokens are divided along the sequence a column-parallel B gathers its input, again for the
// gradient of its weight, and the gradient of that input is whole before it is divided; the output
// of a row-parallel A is, and the gradient of that output is gathered.
void add_gathered(MegatronBlock& block, const Adapter& adapter) {
  if (!gathers(block, adapter)) {
    return;
  }
  const std::int64_t whole = block.job.adapters.rank * block.shape.tokens;
  const AdapterRows& names = adapter.names;
  block.rows.use("adapter.whole_low_rank", whole, block.shape.dtype, names.forward, names.forward,
                 "r*T: gathered for B, or of A before its reduce-scatter");
  block.rows.use("adapter.whole_low_rank_gradient",
                 (is_column_parallel(adapter.shape.place) ? 2 : 1) * whole, block.shape.dtype,
                 names.backward, names.backward,
                 "r*T: gathered for A; or of B its input, gathered again, and that one's gradient");
}

// The product of plain latent queries has no norm of its own.
bool is_behind_norm(const MegatronBlock& block, const Adapter& adapter) {
  const bool is_plain_query =
      adapter.shape.place == AdapterPlace::kQueryUp && block.job.model.mla.q_lora_rank == 0;
  return adapter.names.is_behind_norm && !is_plain_query;
}

// Forward there are B's output, its product with the scale, and their sum with the layer's own
// output: two more than one, when what the layer's own product gathered or summed is gone. Backward
// the adapter runs first, and leaves its part of the gradient of the layer's input, beside which
// the layer's own is made; LayerNormLinear adds both in a tensor of its own. Before that there is
// the scaled gradient of the output, or one of the input behind dropout, where the layer's own
// rows of the step are not yet.
void add_passing(MegatronBlock& block, const Adapter& adapter) {
  const AdapterRows& names = adapter.names;
  const DType dtype = block.shape.dtype;
  const std::int64_t input = adapter.tokens.input * adapter.shape.inputs;
  const std::int64_t output = adapter.tokens.output * adapter.shape.outputs;
  const bool whole_sequence = gathers(block, adapter);
  const std::int64_t whole = whole_sequence ? block.shape.hidden * block.shape.tokens : 0;
  block.rows.use("adapter.outputs", std::max<std::int64_t>(0, 2 * output - whole), dtype,
                 names.forward, names.forward,
                 "2*o*m: B's output, and scaled; less h*T that the layer's own product gathered");
  block.rows.use("adapter.input_gradient", input, dtype, names.backward, names.last_backward,
                 "i*n: the adapter's part of the gradient of the layer's input");
  const std::int64_t sum = is_behind_norm(block, adapter) && !whole_sequence ? input : 0;
  block.rows.use("adapter.gradients", std::max(sum, output - 2 * input - whole), dtype,
                 names.backward, names.backward,
                 "i*n: sum of both parts behind a norm; o*m, scaled, beyond the step's other rows");
}

void add_weight_gradients(MegatronBlock& block, const Adapter& adapter) {
  const std::int64_t rank = block.job.adapters.rank;
  add_weight_gradient(block, "adapter.a_gradient", rank * adapter.shape.inputs,
                      adapter.names.backward, adapter.shape.count);
  add_weight_gradient(block, "adapter.b_gradient", rank * adapter.shape.outputs,
                      adapter.names.backward, adapter.shape.count);
}

}  // namespace

void keep_where_saved(MegatronBlock& block, bool saved, std::string_view name,
                      std::int64_t elements, DType dtype, Life life, std::string_view formula) {
  if (saved) {
    block.rows.keep(name, elements, dtype, life, formula);
  } else {
    block.rows.use(name, elements, dtype, life.born, life.last_forward_use, formula);
  }
}

void add_linear_gradient(MegatronBlock& block, std::string_view name, std::int64_t elements,
                         Step step, std::int64_t count) {
  if (trains_linears(block)) {
    add_weight_gradient(block, name, elements, step, count);
  }
}

void add_adapter(MegatronBlock& block, AdapterPlace place, const AdapterTokens& tokens) {
  for (const AdapterShape& shape : block.adapters) {
    if (shape.place == place) {
      const Adapter adapter = {
          .shape = shape, .names = kRows[static_cast<std::size_t>(place)], .tokens = tokens};
      add_saved(block, adapter);
      add_gathered(block, adapter);
      add_passing(block, adapter);
      add_weight_gradients(block, adapter);
    }
  }
}

void add_adapter(MegatronBlock& block, AdapterPlace place) {
  const std::int64_t all = block.shape.tokens;
  const std::int64_t own = block.shape.sharded_tokens;
  const bool is_column = is_column_parallel(place);
  add_adapter(block, place,
              {.input = is_column ? own : all,
               .low = own,
               .output = is_column ? all : own,
               .gathers = true});
}

void add_replicated_adapter(MegatronBlock& block, AdapterPlace place) {
  const std::int64_t own = block.shape.sharded_tokens;
  add_adapter(block, place, {.input = own, .low = own, .output = own});
}

void add_whole_adapter(MegatronBlock& block, AdapterPlace place) {
  const std::int64_t all = block.shape.tokens;
  add_adapter(block, place, {.input = all, .low = all, .output = all});
}

}  // namespace shardplan::megatron
