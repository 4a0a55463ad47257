// Keys of a config.json that several families have: one number under several names, defaults of a
// class, lists with an entry a layer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/models/family.h"

namespace shardplan {

inline constexpr std::int64_t kMaxFfn = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxExperts = std::int64_t{1} << 16;
inline constexpr std::int64_t kMaxWindow = std::int64_t{1} << 27;
inline constexpr std::int64_t kMaxHidden = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxHeads = std::int64_t{1} << 16;
inline constexpr std::int64_t kMaxHeadDim = std::int64_t{1} << 14;

// `null` for null, which is the least value, too; `absent` without the key.
std::int64_t integer_or_null(ConfigReading& reading, std::string_view key, std::int64_t null,
                             std::int64_t absent, std::int64_t high);
// A size that decides the shape: the default of the class is taken, but not silently.
std::int64_t class_default(ConfigReading& reading, std::string_view key, std::int64_t value,
                           std::int64_t high);
// One number under several names; those that are there must agree.
std::optional<std::int64_t> aliased(ConfigReading& reading, std::span<const std::string_view> keys,
                                    std::int64_t high);
// Whether the key is there and not null.
bool is_given(const ConfigReading& reading, std::string_view key);

// Lists; nullopt when absent or null.
std::optional<std::vector<std::int64_t>> integers(ConfigReading& reading, std::string_view key,
                                                  std::int64_t low, std::int64_t high);
std::optional<std::vector<std::int64_t>> layer_indices(ConfigReading& reading,
                                                       std::string_view key);
// At least one string a layer: files append those of prediction modules, which are cut.
std::optional<std::vector<std::string>> words_by_layer(ConfigReading& reading,
                                                       std::string_view key);
// Likewise of integers.
std::optional<std::vector<std::int64_t>> numbers_by_layer(ConfigReading& reading,
                                                          std::string_view key, std::int64_t low,
                                                          std::int64_t high);
// A number, or a list of equal ones.
std::int64_t same_in_all_layers(ConfigReading& reading, std::string_view key, std::int64_t low,
                                std::int64_t high);
InputError unknown_word(const ConfigReading& reading, std::string_view key, const std::string& word,
                        const std::string& expected);

// The word of the family's activation_key, if it has one.
void read_activation(ConfigReading& reading);

// What each word of layer_types means here; 0: this model states no such width.
struct Widths {
  std::int64_t sliding = 0;
  std::int64_t chunked = 0;
};
// True if layer_types is there; it then decides alone what mixes the tokens of each layer.
bool read_layer_types(ConfigReading& reading, Widths widths);

// Heads of single layers under per_layer_config, as files of transformers 5 state them.
void read_layer_config(ConfigReading& reading);

// 0 for null; the default of the class when absent.
std::int64_t window_or(ConfigReading& reading, std::string_view key, std::int64_t fallback);
// The family's sliding_window; use_sliding_window switches the whole key off (Qwen).
std::int64_t window_if_used(ConfigReading& reading);

// With a factor a model may have more positions than it states, unless it also says how many it
// began with: then the factor is in them.
bool scales_positions(ConfigReading& reading, std::string_view key);

// The object under the key, as a reading of its own with a model of its own.
ConfigReading section_of(ConfigReading& reading, std::string_view key);

}  // namespace shardplan
