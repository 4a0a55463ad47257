// Sources: Megatron-LM core_v0.16.1 core/ssm/mamba_mixer.py and gated_delta_net.py, whose out_proj
// is told of no save_original_input; Transformer Engine v2.9 pytorch/module/linear.py.
#include "estimator/frameworks/megatron/mixers/mixer_ends.h"

#include "estimator/frameworks/megatron/adapters/rows.h"
#include "estimator/frameworks/megatron/blocks/attention.h"
#include "estimator/frameworks/megatron/blocks/layer_ends.h"

namespace shardplan::megatron {

void keep_mixer_output(MegatronBlock& block, std::string_view name, std::int64_t elements,
                       std::string_view formula) {
  const bool is_saved =
      saves_input(block, adapts_mixer_output(block.job)) && block.plan.precision != Precision::kFp8;
  keep_where_saved(block, is_saved, name, elements, block.shape.dtype,
                   {.born = Step::kForwardAttention,
                    .last_forward_use = Step::kForwardProjection,
                    .dies = block.weight_step(Step::kBackwardProjection)},
                   formula);
}

void add_mixer_ends(MegatronBlock& block, std::int64_t made) {
  const bool is_whole = gathers_in_front(block.job, block.plan, block.layer);
  add_input_gradients(block, made);
  add_projection(block);
  for (const AdapterPlace place :
       {AdapterPlace::kMixerInput, AdapterPlace::kMixerSteps, AdapterPlace::kMixerOutput}) {
    if (is_whole) {
      add_whole_adapter(block, place);
    } else {
      add_adapter(block, place);
    }
  }
}

}  // namespace shardplan::megatron
