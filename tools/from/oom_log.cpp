#include "tools/from/oom_log.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <deque>

#include "estimator/plan/units.h"
#include "tools/from/launcher_prefix.h"
#include "tools/report/text.h"

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
  if (read.ec != std::errc{} || !(number >= 0 && number <= 1e9)) {
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

// Where words stand in a text, whatever spaces stand in either: lines that were broken to fit a
// terminal lack some.
struct Place {
  std::size_t begin = std::string_view::npos;
  std::size_t end = 0;
  explicit operator bool() const { return begin != std::string_view::npos; }
};

Place place_at(std::string_view text, std::size_t begin, std::string_view words) {
  std::size_t at = begin;
  for (const char letter : words) {
    if (letter == ' ') {
      continue;
    }
    while (at < text.size() && text[at] == ' ') { ++at; }
    if (at == text.size() || text[at] != letter) {
      return {};
    }
    ++at;
  }
  return {.begin = begin, .end = at};
}

Place find_words(std::string_view text, std::string_view words, std::size_t from = 0) {
  const char first = words[words.find_first_not_of(' ')];
  for (std::size_t at = text.find(first, from); at != std::string_view::npos;
       at = text.find(first, at + 1)) {
    if (const Place found = place_at(text, at, words)) {
      return found;
    }
  }
  return {};
}

// "2.00 GiB" at the start of the text, behind spaces.
std::optional<PrintedBytes> next_size(std::string_view text) {
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(' ')));
  return size_at(text);
}

std::optional<PrintedBytes> size_after(std::string_view text, std::string_view words) {
  const Place found = find_words(text, words);
  return found ? next_size(text.substr(found.end)) : std::nullopt;
}

// "2.00 GiB" right before the words.
std::optional<PrintedBytes> size_before(std::string_view text, std::string_view words) {
  const Place found = find_words(text, words);
  if (!found) {
    return std::nullopt;
  }
  std::size_t start = found.begin;
  const auto skip = [&](auto belongs) {
    while (start > 0 && belongs(text[start - 1])) { --start; }
  };
  const auto is_space = [](char letter) { return letter == ' '; };
  skip(is_space);
  skip([](char letter) { return std::isalpha(static_cast<unsigned char>(letter)) != 0; });
  skip(is_space);
  skip([](char letter) { return is_digit(letter) || letter == '.'; });
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
  const Place found = find_words(text, words);
  return found ? next_integer(text.substr(found.end)) : std::nullopt;
}

// Of a launcher's prefix. The last one before the message counts.
std::optional<std::int64_t> rank_in(std::string_view before) {
  for (const std::string_view words : kRankTags) {
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
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;  // sizes are up to 1e9 GiB each
  for (Place at = find_words(message, kProcess); event.process && at;
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

// The lines of a log, without colours; some are read before it is their turn.
class Lines {
 public:
  explicit Lines(TextFile& log) : log_(log) {}
  bool next(std::string& line) {
    if (ahead(0) == nullptr) {
      return false;
    }
    line = std::move(ahead_.front());
    skip(1);
    return true;
  }
  std::int64_t number() const { return number_; }  // of the line that came last, from 1
  // The lines behind it; nullptr behind the end.
  const std::string* ahead(std::size_t at) {
    for (std::string line; ahead_.size() <= at && log_.next_line(line);) {
      drop_colours(line);
      ahead_.push_back(std::move(line));
    }
    return at < ahead_.size() ? &ahead_[at] : nullptr;
  }
  void skip(std::size_t count) {
    ahead_.erase(ahead_.begin(), ahead_.begin() + static_cast<std::ptrdiff_t>(count));
    number_ += static_cast<std::int64_t>(count);
  }

 private:
  TextFile& log_;
  std::deque<std::string> ahead_;
  std::int64_t number_ = 0;
};

// What stands behind the same logger's prefix, or that of the launcher before it, but for digits of
// another time; else the whole line.
std::string_view behind_prefix(std::string_view line, std::string_view prefix) {
  const auto is_same = [](char one, char other) {
    return one == other || (is_digit(one) && is_digit(other));
  };
  for (const std::string_view each : {prefix, launcher_prefix(prefix)}) {
    if (line.size() >= each.size() &&
        std::ranges::equal(each, line.substr(0, each.size()), is_same)) {
      return line.substr(each.size());
    }
  }
  return line;
}

// What a message says last of what is read here: from 2.0 on, 1.4 and later, before.
bool is_whole(std::string_view text) {
  constexpr std::array<std::string_view, 3> kEnds = {"but unallocated", "reserved in total",
                                                     "cached)"};
  const Place tried = find_words(text, kTried);
  return tried && std::ranges::any_of(kEnds, [&](std::string_view words) {
           return static_cast<bool>(find_words(text, words, tried.end));
         });
}

// The line of a message with those behind it: its next sentences, and any pieces that complete it,
// into which a terminal or a logger broke it; each perhaps behind the same prefix again.
std::string whole_message(Lines& lines, const std::string& first) {
  constexpr std::size_t kMostLines = 32;
  constexpr std::string_view kOutOfMemory = "out of memory. ";
  if (!find_words(first, kOutOfMemory) && !find_words(first, kTried)) {
    return first;
  }
  const std::string_view prefix = std::string_view(first).substr(0, prefix_width(first));
  std::string message = first;
  std::string known = first;  // what surely belongs together, and its lines behind the first
  std::size_t num_known = 0;
  for (std::size_t at = 0; at < kMostLines && !is_whole(message); ++at) {
    const std::string* const next = lines.ahead(at);
    const bool has_size = static_cast<bool>(find_words(message, kTried));
    if (next == nullptr || find_words(*next, kOutOfMemory) ||
        (has_size && find_words(*next, kTried))) {
      break;
    }
    const std::string_view piece = behind_prefix(*next, prefix);
    const bool follows = has_size && at == num_known && is_sentence(piece);
    message += piece;
    if (follows || is_whole(message)) {
      known = message;
      num_known = at + 1;
    }
  }
  lines.skip(num_known);
  return known;
}

// Processes write to one log: a line may hold several messages.
void add_allocator_events(std::vector<OomEvent>& events, std::string_view line, std::int64_t number,
                          std::optional<std::int64_t> step) {
  std::size_t start = 0;
  for (Place found = find_words(line, kTried); found;) {
    const Place next = find_words(line, kTried, found.end);
    OomEvent event = allocator_event(line.substr(start, found.begin - start),
                                     line.substr(found.end, next.begin - found.end));
    event.line = number;
    event.last_step = step;
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
  std::optional<std::int64_t> step;
  Lines lines(log);
  for (std::string text; lines.next(text);) {
    const std::int64_t number = lines.number();
    text = whole_message(lines, text);
    const bool is_message = static_cast<bool>(find_words(text, kTried));
    add_allocator_events(read.events, text, number, step);
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
