#include "tools/from/oom_log.h"

#include <algorithm>
#include <array>

#include "data/read/text_file.h"
#include "tools/from/log_lines.h"
#include "tools/from/log_text.h"

namespace shardplan {
namespace {

// "  1%|   | 3/300 [00:02<": tqdm's bar of transformers' Trainer, which has no title as others
// have.
std::optional<std::int64_t> step_of_bar(std::string_view line) {
  const std::size_t begin = line.find_first_not_of(" \r");
  const std::size_t percent = line.find("%|");
  const std::size_t count = line.find("| ", percent == std::string_view::npos ? 0 : percent + 2);
  if (begin == std::string_view::npos || percent == std::string_view::npos ||
      count == std::string_view::npos ||
      line.substr(begin, percent - begin).find_first_not_of("0123456789") !=
          std::string_view::npos) {
    return std::nullopt;
  }
  return next_integer(line.substr(count + 2));
}

// " iteration        3/     100 |" (Megatron), "step:  3  loss:" (torchtitan), "iteration: 3 / 100"
// (nanotron), "step=3" and the like.
std::optional<std::int64_t> step_in(std::string_view line) {
  if (const std::optional<std::int64_t> step = step_of_bar(line)) {
    return step;
  }
  for (const std::string_view words : {"iteration:", "iteration ", "step:", "step=", "steps:"}) {
    const std::size_t found = line.find(words);
    if (found == std::string_view::npos) {
      continue;
    }
    const bool is_setting =  // "max_steps: 500"
        found > 0 && (line[found - 1] == '_' || line[found - 1] == '-');
    const auto step = next_integer(line.substr(found + words.size()));
    if (step && !is_setting) {
      return step;
    }
  }
  return std::nullopt;
}

// '  File "/.../torch/optim/adam.py", line 182, in _init_group': what such a call takes part in. Of
// the calls of a traceback the later in this list says more, but for a forward pass within the
// backward.
StepPart part_of_call(std::string_view line) {
  constexpr std::string_view kFile = "File \"";
  constexpr std::string_view kName = ", in ";
  const std::size_t file_at = line.find(kFile);
  const std::size_t name_at = line.rfind(kName);
  if (file_at == std::string_view::npos || name_at == std::string_view::npos || name_at < file_at) {
    return StepPart::kUnknown;
  }
  const std::string_view file = line.substr(file_at + kFile.size(), name_at - file_at);
  const std::string_view name = line.substr(name_at + kName.size());
  const auto lies_in = [file](std::string_view part) {
    return file.find(part) != std::string_view::npos;
  };
  if (name.starts_with("_engine_run_backward") || lies_in("torch/autograd/__init__.py")) {
    return StepPart::kBackward;
  }
  if (lies_in("torch/optim/") || lies_in("bitsandbytes/optim/") ||
      name.starts_with("optimizer_step")) {
    return StepPart::kOptimizer;
  }
  if (name.find("cross_entropy") != std::string_view::npos ||
      name.find("Loss") != std::string_view::npos) {
    return StepPart::kLoss;
  }
  return name.starts_with("forward") ? StepPart::kForward : StepPart::kUnknown;
}

// c10/cuda/CUDACachingAllocator.cpp, NativeCachingAllocator::allocate: no GPU is asked.
constexpr std::string_view kMoreThanAll = "Tried to allocate more than 1EB memory";

// Out of memory without PyTorch's allocator in between: NCCL's CUDACHECK and ncclCudaCallocAsync
// (include/checks.h, alloc.h), C10_CUDA_DRIVER_CHECK under expandable segments, NVTE_CHECK_CUDA of
// Transformer Engine, Triton's launcher.
struct OutsideWords {
  std::string_view words;
  std::string_view owner;
};
constexpr std::array<OutsideWords, 10> kOutside = {
    {{"Cuda failure 2 'out of memory'", "NCCL"},
     {"Cuda failure 'out of memory'", "NCCL"},
     {"Failed to CUDA calloc", "NCCL"},
     {"CUBLAS_STATUS_ALLOC_FAILED", "cuBLAS"},
     {"CUDNN_STATUS_ALLOC_FAILED", "cuDNN"},
     {"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "cuDNN"},
     {"CUDA error: out of memory", "the CUDA driver"},
     {"CUDA driver error: out of memory", "the CUDA driver"},
     {"CUDA Error: out of memory", "Transformer Engine"},
     {"Triton Error [CUDA]: out of memory", "Triton"}}};

// What is left of a process that the host's memory did not suffice for: the kernel's log, Slurm's,
// Ray's, torchrun's summary, PyTorch's DataLoader and its CPU allocator.
constexpr std::array<std::string_view, 10> kHostWords = {
    "Out of memory: Killed process",
    "oom-kill",
    "oom_kill",
    "OOMKilled",
    "killed due to the node running low on memory",
    "exitcode: -9",
    "exitcode  : -9",
    "Signal 9 (SIGKILL)",
    "killed by signal: Killed",
    "DefaultCPUAllocator: can't allocate memory"};

bool tells_of_host_memory(std::string_view line) {
  return std::ranges::any_of(kHostWords, [line](std::string_view words) {
    return line.find(words) != std::string_view::npos;
  });
}

// "Process 4711 has 79.10 GiB memory in use." Where the message knows its own process it names that
// one by other words; else, in a container, it may be any of these.
void add_other_processes(OomEvent& event, std::string_view message) {
  constexpr std::string_view kProcess = "Process ";
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;  // sizes are up to 1e9 GiB each
  for (FoundWords at = find_words(message, kProcess); event.process && at;
       at = find_words(message, kProcess, at.end)) {
    const std::string_view rest = message.substr(at.end);
    const std::optional<PrintedBytes> size = size_after(rest, " has ");
    if (size && next_integer(rest)) {
      ++event.num_others;
      event.others_bytes = std::min(event.others_bytes + size->middle(), kMostBytes);
    }
  }
}

// `message` begins behind kTried.
OomEvent allocator_event(std::string_view before, std::string_view message) {
  OomEvent event;
  event.rank = rank_in(before);
  event.gpu = integer_after(message, "GPU ");
  event.tried = next_size(message);
  event.capacity = size_after(message, "total capacity of ");
  if (!event.capacity) {
    event.capacity = size_after(message, "total capacty of ");  // so spelt in 2.0 and 2.1
  }
  event.capacity = event.capacity ? event.capacity : size_before(message, " total capacity");
  event.free = size_before(message, " is free");
  event.free = event.free ? event.free : size_before(message, " free;");
  event.process = size_after(message, "this process has ");
  add_other_processes(event, message);
  event.allowed = size_before(message, " allowed;");
  event.allocated = size_after(message, "Of the allocated memory ");
  event.allocated = event.allocated ? event.allocated : size_before(message, " already allocated");
  event.reserved = size_before(message, " reserved in total");
  auto unused = size_before(message, " is reserved by PyTorch but unallocated");
  unused = unused ? unused : size_before(message, " cached)");  // reserved - allocated: 1.0 to 1.3
  if (!event.reserved && unused && event.allocated) {
    event.reserved = PrintedBytes{.text = "",
                                  .low = event.allocated->low + unused->low,
                                  .high = event.allocated->high + unused->high};
    event.reserved->text = printed_bytes(event.reserved->middle());
  }
  return event;
}

std::string text_of(const std::optional<PrintedBytes>& size) {
  return size ? size->text : "";
}

// A launcher prints a message once more in its summary, often without the rank.
bool is_copy(const OomEvent& one, const OomEvent& other) {
  const bool same_place = !one.rank || !other.rank || one.rank == other.rank;
  return same_place && one.gpu == other.gpu && one.outside == other.outside &&
         text_of(one.tried) == text_of(other.tried) &&
         text_of(one.capacity) == text_of(other.capacity) &&
         text_of(one.free) == text_of(other.free) &&
         text_of(one.allocated) == text_of(other.allocated) &&
         text_of(one.reserved) == text_of(other.reserved);
}

void add_event(std::vector<OomEvent>& events, OomEvent event) {
  for (OomEvent& known : events) {
    if (is_copy(known, event)) {
      ++known.repeats;
      known.rank = known.rank ? known.rank : event.rank;
      return;
    }
  }
  events.push_back(std::move(event));
}

// Processes write to one log: a line may hold several messages.
void add_allocator_events(std::vector<OomEvent>& events, std::string_view line, std::int64_t number,
                          std::optional<std::int64_t> step, StepPart part) {
  std::size_t start = 0;
  for (FoundWords found = find_words(line, kTried); found;) {
    const FoundWords next = find_words(line, kTried, found.end);
    OomEvent event = allocator_event(line.substr(start, found.begin - start),
                                     line.substr(found.end, next.begin - found.end));
    event.line = number;
    event.last_step = step;
    event.part = part;
    if (event.tried) {
      add_event(events, std::move(event));
    }
    start = found.end;
    found = next;
  }
}

void add_outside_event(std::vector<OomEvent>& events, std::string_view line, std::int64_t number,
                       std::optional<std::int64_t> step) {
  for (const auto& [words, owner] : kOutside) {
    const std::size_t at = line.find(words);
    if (at != std::string_view::npos) {
      OomEvent event;
      event.line = number;
      event.rank = rank_in(line.substr(0, at));
      event.last_step = step;
      event.outside = std::string(owner);
      add_event(events, std::move(event));
      return;
    }
  }
}

}  // namespace

std::optional<std::int64_t> OomEvent::usable_bytes() const {
  if (!capacity) {
    return std::nullopt;
  }
  const std::int64_t left = std::max<std::int64_t>(capacity->middle() - others_bytes, 0);
  if (!allowed || !process || !reserved) {
    return left;
  }
  const std::int64_t outside_allocator =
      std::max<std::int64_t>(process->middle() - reserved->middle(), 0);
  return std::min(left, allowed->middle() + outside_allocator);
}

OomLog read_oom_log(TextFile& log) {
  OomLog read;
  std::optional<std::int64_t> step;
  StepPart part = StepPart::kUnknown;
  LogLines lines(log);
  for (std::string text; lines.next(text);) {
    const std::int64_t number = lines.number();
    text = whole_message(lines, text);
    const bool is_message = static_cast<bool>(find_words(text, kTried));
    part = text.find("Traceback (most recent call last)") == std::string::npos
               ? std::max(part, part_of_call(text))
               : StepPart::kUnknown;
    add_allocator_events(read.events, text, number, step, part);
    if (!is_message) {
      add_outside_event(read.events, text, number, step);
    }
    if (read.host_oom_line == 0 && tells_of_host_memory(text)) {
      read.host_oom_line = number;
    }
    if (read.wrong_size_line == 0 && find_words(text, kMoreThanAll)) {
      read.wrong_size_line = number;
    }
    if (const auto reported = is_message ? std::nullopt : step_in(text)) {
      step = reported;
    }
  }
  return read;
}

}  // namespace shardplan
