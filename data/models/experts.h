// Which layers of a family have experts, and how many of which width.
#pragma once

#include "data/models/family.h"

namespace shardplan {

// model.layers has its size, model.ffn the intermediate_size.
void read_mixtral_experts(ConfigReading& reading);
void read_qwen_experts(ConfigReading& reading);
void read_deepseek_experts(ConfigReading& reading);
void read_llama4_experts(ConfigReading& reading);
// num_experts, num_experts_per_tok and moe_intermediate_size, each under its several names.
void read_routed(ConfigReading& reading);
// Marks layers by mlp_layer_types or a list under moe_layer_freq; nothing where neither is there.
void mark_by_lists(ConfigReading& reading);
// The experts' width is intermediate_size; shared_intermediate_size may be 0, and without experts
// that is the dense FFN's.
void read_granite_experts(ConfigReading& reading);
void read_ernie_experts(ConfigReading& reading);
void read_hunyuan_experts(ConfigReading& reading);
void read_jamba_experts(ConfigReading& reading);
void read_lfm2_experts(ConfigReading& reading);
void read_nemotron_experts(ConfigReading& reading);
void read_step_experts(ConfigReading& reading);

}  // namespace shardplan
