// Environment variables of a run that decide about memory: the allocator's settings, NCCL's
// buffers, Transformer Engine's choice of kernels.
#include "data/arguments/environment.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "data/arguments/run_settings.h"
#include "data/frameworks/framework.h"
#include "data/read/json_message.h"
#include "estimator/frameworks/framework.h"

namespace shardplan {
namespace {

// Words of the allocator that change no tensor: which free blocks it splits, reuses or gives back,
// and what it does on the host.
constexpr std::array<std::string_view, 9> kOfCacheAlone = {"max_split_size_mb",
                                                           "max_non_split_rounding_mb",
                                                           "garbage_collection_threshold",
                                                           "graph_capture_record_stream_reuse",
                                                           "release_lock_on_cudamalloc",
                                                           "pinned_use_cuda_host_register",
                                                           "pinned_num_register_threads",
                                                           "pinned_use_background_threads",
                                                           "pinned_reserve_segment_size_mb"};

void note_of_cache(const Setting& setting, const std::string& word, RunReading& run) {
  run.uses.push_back({.name = setting.name,
                      .value = word,
                      .effect = SettingEffect::kNotCounted,
                      .meaning = "not modelled"});
  run.notes.push_back(setting.place + word +
                      ": not modelled, the answer is without it; it changes what the allocator "
                      "reserves, not what is allocated");
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
    } else if (std::ranges::find(kOfCacheAlone, name) != kOfCacheAlone.end()) {
      note_of_cache(setting, word, run);
    } else if (name != "backend" || value != "native") {
      refuse(run, setting.name + " " + word + ": another allocator or other sizes of its blocks");
    }
  }
}

// ":4096:8" or ":4096:2:16:8": pairs of KiB and how many
// (aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize).
std::int64_t workspace_bytes(const Setting& setting) {
  const std::string& text = setting.values.front();
  std::vector<std::int64_t> numbers;
  std::size_t at = 0;
  while (at < text.size() && text[at] == ':') {
    std::int64_t number = -1;
    const std::from_chars_result read =
        std::from_chars(text.data() + at + 1, text.data() + text.size(), number);
    if (read.ec != std::errc{} || number < 0 || number > 1 << 20) {
      break;
    }
    numbers.push_back(number);
    at = static_cast<std::size_t>(read.ptr - text.data());
  }
  if (at != text.size() || numbers.empty() || numbers.size() % 2 != 0) {
    throw InputError(setting.place + "found \"" + shown(text, Encoding::kUnchecked) +
                     "\", expected pairs of KiB and count such as :4096:8");
  }
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < numbers.size(); i += 2) {
    bytes += numbers[i] * 1024 * numbers[i + 1];
  }
  return bytes;
}

// A profile without the option counts its workspaces as they are.
void read_workspace(const Setting& setting, RunReading& run, const Library& library) {
  const std::int64_t bytes = workspace_bytes(setting);
  const std::vector<ProfileOption> options =
      profile_options(library, library.key_of(run.job.profile));
  const bool declared =
      std::ranges::find(options, "torch_workspace_bytes", &ProfileOption::name) != options.end();
  if (declared && bytes > 0) {
    const std::string reason =
        try_option(run.job.profile, "torch_workspace_bytes", std::to_string(bytes), library);
    if (!reason.empty()) {
      refuse(run, setting.name + ": " + reason);
    }
  }
}

// One kernel runs at a time: what would run beside another does not, and Megatron-LM starts all the
// same.
void read_overlaps_as_off(const Setting& setting, RunReading& run) {
  FrameworkProfile& profile = run.job.profile;
  std::string found;
  if (const auto overlaps = framework_of(profile).overlaps; overlaps != nullptr) {
    for (const std::string& overlap : overlaps(profile, run.plan)) {
      found += (found.empty() ? "" : ", ") + overlap;
    }
  }
  if (!found.empty()) {
    run.notes.push_back(setting.place + "one kernel runs at a time; read as off: " + found);
  }
  profile.overlap_grad_reduce = false;
  profile.overlap_param_gather = false;
  profile.overlap_p2p_comm = false;
  profile.overlap_moe_expert_parallel_comm = false;
  profile.tp_overlap = TpOverlap::kExposed;
  profile.cp_overlap = CpOverlap::kExposed;
}

// As PyTorch reads it; a profile without the option counts no time of the host's waiting.
void read_launch_blocking(const Setting& setting, RunReading& run, const Library& library) {
  if (setting.values.front() != "1") {
    return;
  }
  const std::vector<ProfileOption> options =
      profile_options(library, library.key_of(run.job.profile));
  if (std::ranges::find(options, "launch_blocking", &ProfileOption::name) != options.end()) {
    try_option(run.job.profile, "launch_blocking", "true", library);
    read_overlaps_as_off(setting, run);
  }
}

}  // namespace

void read_environment(const RunSettings& settings, const Library& library, RunReading& run) {
  const RunArguments environment(settings.file, settings.environment,
                                 argument_table(library, "environment"));
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
    if (setting.name == "CUBLAS_WORKSPACE_CONFIG") {
      read_workspace(setting, run, library);
    }
    if (setting.name == "CUDA_LAUNCH_BLOCKING") {
      read_launch_blocking(setting, run, library);
    }
    if (setting.name == "ASCEND_RT_VISIBLE_DEVICES") {
      run.notes.push_back(setting.place + "found Ascend's NPUs, took " + run.job.cluster.gpu.id +
                          " in their place, with its kernels");
    }
    if (setting.name == "OMP_NUM_THREADS") {  // others' steps do not know it
      try_option(run.job.profile, "host_threads", setting.values.front(), library);
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
