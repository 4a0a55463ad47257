// A tower for pictures or sound beside a text model: the sizes that decide its parameters.
#pragma once

#include <cstdint>

namespace shardplan {

// Whose classes: Qwen3-VL's and Qwen3.5's vision, SigLIP under Gemma 3's projector, Pixtral under
// Mistral 3's, Llama 4's vision, Whisper's encoder under Voxtral's projector, Gemma 4's vision and
// sound, and the projections that stand for both where it has no encoders.
enum class TowerKind {
  kNone,
  kQwen,
  kSiglip,
  kPixtral,
  kLlama4,
  kWhisper,
  kGemma4,
  kGemma4Unified
};

struct TowerSpec {
  TowerKind kind = TowerKind::kNone;  // kNone: no tower, or one whose sizes nobody states
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t ffn = 0;
  std::int64_t patch = 0;         // elements of a patch; of sound, frequencies of a moment
  std::int64_t positions = 0;     // rows of the table of positions
  std::int64_t merged = 0;        // patches that become one token of the text
  std::int64_t mergers = 0;       // kQwen: further ones, behind layers within (deepstack)
  std::int64_t adapted = 0;       // kLlama4: width between the two layers behind the pixel shuffle
  std::int64_t output = 0;        // width of what goes to the projector, or is the text's
  std::int64_t head_dim = 0;      // kGemma4: of the norms of queries and keys
  std::int64_t sound_layers = 0;  // kGemma4: of a second encoder; 0: none
  std::int64_t sound_hidden = 0;  // of what that encoder, or the projection of sound, reads
  std::int64_t sound_output = 0;
  bool projector_bias = false;
  friend bool operator==(const TowerSpec&, const TowerSpec&) = default;
};

}  // namespace shardplan
