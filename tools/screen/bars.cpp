#include "tools/screen/bars.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tools/report/text.h"

namespace shardplan {
namespace {

constexpr std::size_t kMostBars = 4;
constexpr std::int64_t kLabelWidth = 10;

// A part of what the driver sees, and how it is drawn.
struct BarPart {
  std::string_view name;
  std::string_view ascii;
  std::string_view unicode;
};
constexpr std::array<BarPart, 6> kParts = {{
    {.name = "parameters", .ascii = "P", .unicode = "█"},
    {.name = "gradients", .ascii = "G", .unicode = "▓"},
    {.name = "optimizer", .ascii = "O", .unicode = "▒"},
    {.name = "activations", .ascii = "A", .unicode = "░"},
    {.name = "other", .ascii = "+", .unicode = "+"},
    {.name = "cached", .ascii = "~", .unicode = "~"},
}};
constexpr std::string_view kFree = ".";
constexpr std::string_view kCard = "|";

using PartBytes = std::array<std::int64_t, kParts.size()>;

// "other" is what lies in the other components; "cached" what the allocator reserves beside all.
PartBytes parts_of(const StageMemory& stage) {
  PartBytes bytes{};
  std::int64_t counted = 0;
  for (std::size_t i = 0; i < stage.components.size(); ++i) {
    bytes[std::min<std::size_t>(i, 4)] += stage.components[i];
    counted += stage.components[i];
  }
  bytes[5] = std::max<std::int64_t>(stage.device_used_bytes - counted, 0);
  return bytes;
}

bool is_alike(const StageMemory& one, const StageMemory& other) {
  return one.components == other.components && one.device_used_bytes == other.device_used_bytes &&
         one.peak_moment() == other.peak_moment();
}

// Stages that are alike, as "stage 0", "stages 1-6" or "stages 1,3".
struct Bar {
  const StageMemory* stage;
  std::vector<std::int64_t> stages;
};

std::vector<Bar> bars_of(const MemoryEstimate& memory) {
  std::vector<Bar> bars;
  for (const StageMemory& stage : memory.stages) {
    const auto same =
        std::ranges::find_if(bars, [&](const Bar& bar) { return is_alike(*bar.stage, stage); });
    if (same == bars.end()) {
      bars.push_back({.stage = &stage, .stages = {stage.pp_rank}});
    } else {
      same->stages.push_back(stage.pp_rank);
    }
  }
  std::ranges::stable_sort(bars, std::ranges::greater(),
                           [](const Bar& bar) { return bar.stage->device_used_bytes; });
  return bars;
}

std::string label_of(const Bar& bar) {
  const std::int64_t first = bar.stages.front();
  const std::int64_t last = bar.stages.back();
  const std::int64_t count = std::ssize(bar.stages);
  if (count == 1) {
    return "stage " + std::to_string(first);
  }
  return last - first + 1 == count ? std::to_string(first) + "-" + std::to_string(last)
                                   : std::to_string(count) + " stages";
}

// `cells` characters of `scale_bytes`; a mark where the card ends within them.
std::string bar_text(const PartBytes& bytes, std::int64_t card, double scale_bytes,
                     std::int64_t cells, bool is_unicode) {
  const auto cell_of = [&](std::int64_t end) {
    return std::llround(static_cast<double>(end) / scale_bytes * static_cast<double>(cells));
  };
  const std::int64_t mark = std::min<std::int64_t>(cell_of(card), cells);
  std::string text;
  std::int64_t at = 0;
  const auto draw = [&](std::int64_t end, std::string_view letter) {
    for (; at < end; ++at) {
      text += at == mark ? kCard : "";
      text += letter;
    }
  };
  std::int64_t sum = 0;
  for (std::size_t part = 0; part < kParts.size(); ++part) {
    sum += bytes[part];
    draw(cell_of(sum), is_unicode ? kParts[part].unicode : kParts[part].ascii);
  }
  draw(std::max(at, mark), kFree);
  text += at == mark ? kCard : "";
  draw(cells, " ");
  return text;
}

std::string legend(const Screen& screen, const PartBytes& bytes) {
  std::string text;
  for (std::size_t part = 0; part < kParts.size(); ++part) {
    if (gib(bytes[part]) != "0.00") {
      text += (text.empty() ? "" : "  ") +
              std::string(screen.is_unicode ? kParts[part].unicode : kParts[part].ascii) + " " +
              std::string(kParts[part].name) + " " + gib(bytes[part]);
    }
  }
  return screen_line(screen, " ", text + "  " + std::string(kCard) + " card");
}

}  // namespace

std::string stage_bars(const Screen& screen, const Job& job, const MemoryEstimate& memory) {
  const std::vector<Bar> bars = bars_of(memory);
  const std::int64_t card = card_bytes(job);
  const std::int64_t most = std::max(card, bars.front().stage->device_used_bytes);
  const std::size_t shown = std::min(bars.size(), kMostBars);
  std::int64_t longest = 0;  // moment
  for (std::size_t i = 0; i < shown; ++i) {
    longest = std::max(longest, display_width(bars[i].stage->peak_moment()));
  }
  const std::int64_t moment = std::min<std::int64_t>(longest, screen.width / 3);
  constexpr std::int64_t kNumber = 9;
  const std::int64_t cells =
      std::min<std::int64_t>(screen.width - kLabelWidth - kNumber - moment - 4, 100);
  std::string text = padded_right("GiB", kLabelWidth) + "0" + padded_left(gib(most), cells) +
                     padded_left("used", kNumber) + "  peak at\n";
  for (std::size_t i = 0; i < shown; ++i) {
    const StageMemory& stage = *bars[i].stage;
    text += padded_right(label_of(bars[i]), kLabelWidth) +
            bar_text(parts_of(stage), card, static_cast<double>(most), cells, screen.is_unicode) +
            padded_left(gib(stage.device_used_bytes), kNumber) + "  " +
            (display_width(stage.peak_moment()) > moment
                 ? stage.peak_moment().substr(0, static_cast<std::size_t>(moment - 3)) + "..."
                 : stage.peak_moment()) +
            "\n";
  }
  if (shown < bars.size()) {
    text += padded_right("", kLabelWidth) +
            grouped(static_cast<std::int64_t>(bars.size() - shown)) +
            " more kinds of stages use less\n";
  }
  return text + legend(screen, parts_of(*bars.front().stage));
}

}  // namespace shardplan
