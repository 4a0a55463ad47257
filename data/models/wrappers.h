// Configurations of text and images, or of text and sound, around a text model.
#pragma once

#include <span>
#include <string_view>

namespace shardplan {

struct Wrapper {
  std::string_view model_type;
  std::string_view text_model_type;  // where the text has no model_type of its own
  std::string_view text_key = "text_config";
  // The text may be of any known family; else of that one alone.
  bool takes_any_text = false;
  // Files before transformers 4.52 have the text model's keys beside the wrapper's.
  bool may_be_flat = false;
};

std::span<const Wrapper> wrappers();
// Keys of wrappers that change neither memory nor time of the text model.
std::span<const std::string_view> wrapper_keys();

}  // namespace shardplan
