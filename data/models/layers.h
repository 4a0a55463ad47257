// The layer rules of every family: which layers have experts, and how many keys a query sees.
#pragma once

#include "data/models/family.h"

namespace shardplan {

// The layer rules; model.layers has its size, model.ffn the intermediate_size.
void read_no_experts(ConfigReading& reading);
void read_mixtral_experts(ConfigReading& reading);
void read_qwen_experts(ConfigReading& reading);
void read_deepseek_experts(ConfigReading& reading);
void read_llama4_experts(ConfigReading& reading);
void read_no_windows(ConfigReading& reading);
void read_windows_of_all_layers(ConfigReading& reading);
void read_windows_of_upper_layers(ConfigReading& reading);
void read_windows_if_used(ConfigReading& reading);
void read_windows_of_layer_types(ConfigReading& reading);
void read_windows_by_pattern(ConfigReading& reading);
void read_chunks(ConfigReading& reading);

}  // namespace shardplan
