// How many keys a query sees in each layer of a family.
#pragma once

#include "data/models/family.h"

namespace shardplan {

// model.layers has its size.
void read_windows_of_all_layers(ConfigReading& reading);
void read_windows_of_upper_layers(ConfigReading& reading);
void read_windows_if_used(ConfigReading& reading);
void read_windows_of_layer_types(ConfigReading& reading);
void read_windows_by_pattern(ConfigReading& reading);
// The window in all layers but every pattern-th.
void put_windows(ConfigReading& reading, std::int64_t window, std::int64_t pattern);
void read_windows_with_positions(ConfigReading& reading);
void read_rotary_layers(ConfigReading& reading);
void read_chunks(ConfigReading& reading);

}  // namespace shardplan
