// Environment variables of a run that decide about memory: the allocator's settings, NCCL's
// buffers, Transformer Engine's choice of kernels.
#include <algorithm>

#include "data/json_message.h"
#include "data/run_settings.h"

namespace shardplan {
namespace {

void refuse(RunReading& run, const std::string& what) {
  if (run.unsupported.empty()) {
    run.unsupported = "unsupported: " + what;
  }
}

// "expandable_segments:True,max_split_size_mb:128" (c10/core/AllocatorConfig.cpp).
void read_allocator(const Setting& setting, RunReading& run, const Library& library) {
  const std::string& text = setting.values.front();
  std::size_t start = 0;
  while (start < text.size()) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    std::string word = text.substr(start, end - start);
    std::erase(word, ' ');
    start = end + 1;
    const std::size_t colon = word.find(':');
    if (colon == std::string::npos) {
      throw InputError(setting.place + "found \"" + shown(text, Encoding::kUnchecked) +
                       "\", expected name:value pairs such as expandable_segments:True");
    }
    const std::string name = word.substr(0, colon);
    const std::string value = in_lower_case(word.substr(colon + 1));
    if (name == "expandable_segments") {
      const std::string reason =
          try_option(run.job.profile, "allocator",
                     value == "true" ? "caching_expandable" : "caching", library);
      if (!reason.empty()) {
        refuse(run, setting.name + " " + word + ": " + reason);
      }
    } else if (name != "pinned_use_cuda_host_register" && name != "pinned_num_register_threads" &&
               !(name == "backend" && value == "native")) {
      refuse(run, setting.name + " " + word + ": the replay knows expandable_segments alone");
    }
  }
}

}  // namespace

void read_environment(const RunSettings& settings, const Library& library, RunReading& run) {
  const RunArguments environment(settings.environment, argument_table(library, "environment"));
  run.uses.insert(run.uses.end(), environment.uses().begin(), environment.uses().end());
  const std::string refused = environment.first_refused();
  if (run.unsupported.empty()) {
    run.unsupported = refused;
  }
  if (!run.has_profile) {
    return;
  }
  for (const Setting& setting : settings.environment) {
    if (setting.name == "PYTORCH_CUDA_ALLOC_CONF" || setting.name == "PYTORCH_ALLOC_CONF") {
      read_allocator(setting, run, library);
    }
    if (setting.name == "NVTE_ALLOW_NONDETERMINISTIC_ALGO" && setting.values.front() == "0") {
      const std::string reason =
          try_option(run.job.profile, "deterministic_attention", "true", library);
      if (!reason.empty()) {
        refuse(run, reason);
      }
    }
  }
}

}  // namespace shardplan
