#include "tools/commands/overlaps.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "data/frameworks/framework.h"
#include "data/frameworks/profile_fields.h"

namespace shardplan {
namespace {

// Each with the value that hides most. The second needs the first.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kOverlaps = {{
    {"overlap_grad_reduce", "true"},
    {"overlap_param_gather", "true"},
    {"tp_overlap", "pieces"},
}};

bool is_set(const Options& options, std::string_view name) {
  const std::string start = std::string(name) + "=";
  return std::ranges::any_of(std::array{"framework-option", "set"}, [&](const char* option) {
    const std::vector<std::string> words = all_of(options, option);
    return std::ranges::any_of(words,
                               [&](const std::string& word) { return word.starts_with(start); });
  });
}

}  // namespace

std::vector<std::string> open_overlaps(const Options& options, const SearchQuestion& question,
                                       const Library& library) {
  std::vector<std::string> words;
  if (question.run) {
    return words;
  }
  const FrameworkProfile& profile = question.job.profile;
  const std::vector<ProfileOption> declared = profile_options(library, library.key_of(profile));
  for (const auto& [name, value] : kOverlaps) {
    const bool is_declared =
        std::ranges::find(declared, name, &ProfileOption::name) != declared.end();
    if (is_declared && !is_set(options, name) &&
        profile_field_text(profile, std::string(name)) != value) {
      words.push_back(std::string(name) + "=" + std::string(value));
    }
  }
  return words;
}

std::vector<std::string> useful_overlaps(const std::vector<std::string>& words, const Plan& plan) {
  std::vector<std::string> useful = words;
  std::erase_if(useful, [&](const std::string& word) {
    return plan.tp == 1 && word.starts_with("tp_overlap=");
  });
  return useful;
}

Job without_overlaps(Job job, const std::vector<std::string>& words, const Library& library) {
  const FrameworkProfile own = library.framework(library.key_of(job.profile));
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    apply_option(job.profile, name, profile_field_text(own, name), library);
  }
  return job;
}

Options with_switches(Options options, const std::vector<std::string>& words) {
  for (const std::string& word : words) { add_option(options, "framework-option", word); }
  return options;
}

}  // namespace shardplan
