// What mixes the tokens of layers in place of attention or beside it, as config.json gives it.
#pragma once

#include "data/models/family.h"

namespace shardplan {

// Layers of layer_types, else every full_attention_interval-th with attention; linear_* widths.
void read_gated_delta_layers(ConfigReading& reading);
// linear_attn_config, whose lists of layers count from 1.
void read_kimi_delta_layers(ConfigReading& reading);
// Layers of layer_types or attn_type_list, else every other one.
void read_lightning_layers(ConfigReading& reading);
// Widths under mamba_n_heads and the like (bamba, falcon_h1, granitemoehybrid).
void read_mamba2(ConfigReading& reading);
// Layers of attn_layer_indices have attention, all others Mamba-2.
void read_bamba_layers(ConfigReading& reading);
// Every layer has both.
void read_falcon_h1_layers(ConfigReading& reading);
void read_granite_hybrid_layers(ConfigReading& reading);
void read_jamba_layers(ConfigReading& reading);
void read_convolution_layers(ConfigReading& reading);
// One part a layer, by a letter of hybrid_override_pattern or a word of layers_block_type.
std::int64_t count_pattern_layers(ConfigReading& reading);
void read_pattern_layers(ConfigReading& reading);
// Layers that choose keys by an indexer: all, but those that share another's choice.
void read_indexer_layers(ConfigReading& reading);

}  // namespace shardplan
