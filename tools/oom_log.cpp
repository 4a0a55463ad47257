#include "tools/oom_log.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "estimator/units.h"
#include "tools/text.h"

namespace shardplan {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t bytes;
};
constexpr std::array<Unit, 8> kUnits = {{{"bytes", 1},
                                         {"KiB", kKiB},
                                         {"MiB", kMiB},
                                         {"GiB", kGiB},
                                         // Written so before 2.1.
                                         {"KB", kKiB},
                                         {"MB", kMiB},
                                         {"GB", kGiB},
                                         {"B", 1}}};

bool is_digit(char letter) {
  return std::isdigit(static_cast<unsigned char>(letter)) != 0;
}

// "2.00 GiB" at the start of the text.
std::optional<PrintedBytes> size_at(std::string_view text) {
  double number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc{} || number < 0 || number > 1e9) {
    return std::nullopt;
  }
  const auto length = static_cast<std::size_t>(read.ptr - text.data());
  const std::string_view digits = text.substr(0, length);
  std::string_view rest = text.substr(length);
  rest.remove_prefix(std::min(rest.size(), rest.find_first_not_of(' ')));
  const auto unit =
      std::ranges::find_if(kUnits, [&](const Unit& row) { return rest.starts_with(row.name); });
  if (unit == kUnits.end()) {
    return std::nullopt;
  }
  const std::size_t point = digits.find('.');
  const auto decimals = point == std::string_view::npos ? 0 : digits.size() - point - 1;
  const double scale = static_cast<double>(unit->bytes);
  const double half =
      unit->bytes == 1 ? 0 : scale * std::pow(10.0, -static_cast<double>(decimals)) / 2;
  return PrintedBytes{.text = std::string(digits) + " " + std::string(unit->name),
                      .low = static_cast<std::int64_t>(std::ceil(number * scale - half)),
                      .high = static_cast<std::int64_t>(std::floor(number * scale + half))};
}

std::optional<PrintedBytes> size_after(std::string_view text, std::string_view words) {
  const std::size_t found = text.find(words);
  return found == std::string_view::npos ? std::nullopt
                                         : size_at(text.substr(found + words.size()));
}

// "2.00 GiB" right before the words.
std::optional<PrintedBytes> size_before(std::string_view text, std::string_view words) {
  const std::size_t found = text.find(words);
  if (found == std::string_view::npos) {
    return std::nullopt;
  }
  std::size_t start = found;
  int spaces = 0;  // one stands between number and unit
  while (start > 0 && (text[start - 1] != ' ' || spaces == 0)) {
    spaces += text[start - 1] == ' ' ? 1 : 0;
    --start;
  }
  return size_at(text.substr(start));
}

std::optional<std::int64_t> integer_at(std::string_view text) {
  std::int64_t value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  return read.ec == std::errc{} && value >= 0 && value < kMost ? std::optional(value)
                                                               : std::nullopt;
}

// Behind spaces.
std::optional<std::int64_t> next_integer(std::string_view text) {
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(' ')));
  return integer_at(text);
}

std::optional<std::int64_t> integer_after(std::string_view text, std::string_view words) {
  const std::size_t found = text.find(words);
  return found == std::string_view::npos ? std::nullopt
                                         : next_integer(text.substr(found + words.size()));
}

// Prefixes of launchers: [rank3]: (torch.distributed), [default3]: (torchrun --tee), [1,3]<stderr>:
// (mpirun --tag-output), "3: " (srun --label). The last one before the message counts.
std::optional<std::int64_t> rank_in(std::string_view before) {
  for (const std::string_view words : {"[rank", "[default", "[1,"}) {
    const std::size_t found = before.rfind(words);
    if (found != std::string_view::npos) {
      if (const auto rank = integer_at(before.substr(found + words.size()))) {
        return rank;
      }
    }
  }
  const std::size_t start = std::min(before.size(), before.find_first_not_of(' '));
  const std::size_t colon = before.find(": ", start);
  const bool is_label = colon != std::string_view::npos && colon > start &&
                        std::all_of(before.begin() + static_cast<std::ptrdiff_t>(start),
                                    before.begin() + static_cast<std::ptrdiff_t>(colon), is_digit);
  return is_label ? integer_at(before.substr(start)) : std::nullopt;
}

// " iteration        3/     100 |" (Megatron), "step:  3  loss:" (torchtitan), "iteration: 3 / 100"
// (nanotron), "step=3" and the like.
std::optional<std::int64_t> step_in(std::string_view line) {
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

constexpr std::string_view kTried = "Tried to allocate ";

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
// torchrun's summary, PyTorch's DataLoader and its CPU allocator.
constexpr std::array<std::string_view, 9> kHostWords = {
    "Out of memory: Killed process",
    "oom-kill",
    "oom_kill",
    "OOMKilled",
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

// Terminals' colours: ESC [ digits and semicolons m.
void drop_colours(std::string& line) {
  std::size_t start = 0;
  while ((start = line.find("\x1b[", start)) != std::string::npos) {
    const std::size_t end = line.find_first_not_of("0123456789;", start + 2);
    const bool is_colour = end != std::string::npos && line[end] == 'm';
    line.erase(start, is_colour ? end + 1 - start : 1);
  }
}

// "Process 4711 has 79.10 GiB memory in use." Where the message knows its own process it names that
// one by other words; else, in a container, it may be any of these.
void add_other_processes(OomEvent& event, std::string_view message) {
  constexpr std::string_view kProcess = "Process ";
  for (std::size_t at = message.find(kProcess); event.process && at != std::string_view::npos;
       at = message.find(kProcess, at + 1)) {
    const std::string_view rest = message.substr(at);
    const std::optional<PrintedBytes> size = size_after(rest, " has ");
    if (size && integer_after(rest, kProcess)) {
      ++event.num_others;
      event.others_bytes += size->middle();
    }
  }
}

OomEvent allocator_event(std::string_view before, std::string_view message) {
  OomEvent event;
  event.rank = rank_in(before);
  event.gpu = integer_after(message, "GPU ");
  event.tried = size_at(message.substr(kTried.size()));
  event.capacity = size_after(message, "total capacity of ");
  for (const std::string_view words : {"total capacty of "}) {  // so spelt in 2.0 and 2.1
    event.capacity = event.capacity ? event.capacity : size_after(message, words);
  }
  event.capacity = event.capacity ? event.capacity : size_before(message, " total capacity");
  event.free = size_before(message, " is free");
  event.free = event.free ? event.free : size_before(message, " free;");
  event.process = size_after(message, "this process has ");
  add_other_processes(event, message);
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

// The sentences of a message behind its first: some loggers write each on a line of its own.
bool is_sentence(std::string_view text) {
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(' ')));
  if (text.starts_with("GPU ")) {
    const std::size_t end = text.find_first_not_of("0123456789", 4);
    return end != std::string_view::npos && text.substr(end).starts_with(" has ");
  }
  constexpr std::array<std::string_view, 4> kBeginnings = {"Process ", "Including non-PyTorch ",
                                                           "Of the allocated ", "If reserved "};
  return std::ranges::any_of(kBeginnings,
                             [&](std::string_view words) { return text.starts_with(words); });
}

// How wide the logger's prefix of a message is.
std::size_t prefix_width(std::string_view line) {
  std::size_t width = line.find(kTried);
  for (const std::string_view words : {"torch.", "RuntimeError", "CUDA out of memory"}) {
    width = std::min(width, line.find(words));
  }
  return width;
}

// Adds to the line of a message those behind it that go on with it, each perhaps behind the same
// logger's prefix. `ahead`: the line that does not; none behind the last. Returns how many it took.
std::int64_t add_sentences(TextFile& log, std::string& line, std::optional<std::string>& ahead) {
  const std::size_t width = prefix_width(line);
  std::int64_t num_taken = 0;
  for (std::string next; log.next_line(next); ++num_taken) {
    drop_colours(next);
    const std::string_view behind = std::string_view(next).substr(std::min(width, next.size()));
    if (!is_sentence(behind) && !is_sentence(next)) {
      ahead = std::move(next);
      break;
    }
    line.append(" ").append(is_sentence(behind) ? behind : next);
  }
  return num_taken;
}

}  // namespace

std::string printed_bytes(std::int64_t bytes) {
  const double size = static_cast<double>(bytes);
  if (bytes <= kKiB) {
    return std::to_string(bytes) + " bytes";
  }
  if (bytes <= kMiB) {
    return fixed(size / static_cast<double>(kKiB), 2) + " KiB";
  }
  return bytes <= kGiB ? fixed(size / static_cast<double>(kMiB), 2) + " MiB"
                       : fixed(size / static_cast<double>(kGiB), 2) + " GiB";
}

std::optional<std::int64_t> OomEvent::usable_bytes() const {
  return capacity ? std::optional(std::max<std::int64_t>(capacity->middle() - others_bytes, 0))
                  : std::nullopt;
}

OomLog read_oom_log(TextFile& log) {
  OomLog read;
  std::vector<OomEvent>& events = read.events;
  std::optional<std::int64_t> step;
  std::int64_t number = 0;
  std::int64_t num_lines = 0;
  std::optional<std::string> ahead;
  for (std::string text; ahead || log.next_line(text);) {
    text = ahead ? *std::exchange(ahead, std::nullopt) : text;
    number = ++num_lines;
    drop_colours(text);
    const bool is_message = text.find(kTried) != std::string::npos;
    num_lines += is_message ? add_sentences(log, text, ahead) : 0;
    const std::string_view line = text;
    // Processes write to one log: a line may hold several messages.
    std::size_t found = line.find(kTried);
    for (std::size_t start = 0; found != std::string_view::npos;) {
      const std::size_t next = line.find(kTried, found + kTried.size());
      OomEvent event =
          allocator_event(line.substr(start, found - start), line.substr(found, next - found));
      event.line = number;
      event.last_step = step;
      if (event.tried) {
        add_event(events, std::move(event));
      }
      start = found + kTried.size();
      found = next;
    }
    for (const auto& [words, owner] : kOutside) {
      const std::size_t at = is_message ? std::string_view::npos : line.find(words);
      if (at != std::string_view::npos) {
        OomEvent event;
        event.line = number;
        event.rank = rank_in(line.substr(0, at));
        event.last_step = step;
        event.outside = std::string(owner);
        add_event(events, std::move(event));
        break;
      }
    }
    if (read.host_oom_line == 0 && tells_of_host_memory(line)) {
      read.host_oom_line = number;
    }
    if (const auto reported = is_message ? std::nullopt : step_in(line)) {
      step = reported;
    }
  }
  return read;
}

}  // namespace shardplan
