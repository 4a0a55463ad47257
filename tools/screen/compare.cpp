#include "tools/screen/compare.h"

#include <algorithm>
#include <cmath>

#include "tools/report/text.h"
#include "tools/screen/job.h"

namespace shardplan {
namespace {

std::string text_of(const Cell& cell) {
  const std::string* text = std::get_if<std::string>(&cell);
  return text == nullptr ? "" : *text;
}

// What was chosen differently: "tp 2 -> 4, sequence_parallel off -> on".
std::string choices(const Table& differences) {
  std::string text;
  for (const std::vector<Cell>& row : differences.rows) {
    const std::string kind = text_of(row[0]);
    const bool is_choice = kind == "plan" || kind == "profile" || kind == "job";
    if (!is_choice) {
      continue;
    }
    const auto word = [](const Cell& cell) {
      if (const std::int64_t* count = std::get_if<std::int64_t>(&cell)) {
        return grouped(*count);
      }
      const double* number = std::get_if<double>(&cell);
      return number != nullptr ? shortest(*number) : text_of(cell);
    };
    text +=
        (text.empty() ? "" : ", ") + text_of(row[1]) + " " + word(row[2]) + " -> " + word(row[3]);
  }
  return text.empty() ? "nothing that was chosen" : text;
}

struct Difference {
  std::string name;
  double left = 0;
  double right = 0;
  bool is_bytes = false;

  double change() const { return right - left; }
};

// Rows of these kinds: bytes as GiB, else seconds.
std::vector<Difference> differences_of(const Table& table, std::string_view kind) {
  std::vector<Difference> list;
  for (const std::vector<Cell>& row : table.rows) {
    if (text_of(row[0]) != kind) {
      continue;
    }
    Difference difference = {.name = text_of(row[1])};
    if (const std::int64_t* bytes = std::get_if<std::int64_t>(&row[2])) {
      difference.is_bytes = true;
      difference.left = static_cast<double>(*bytes);
      difference.right = static_cast<double>(std::get<std::int64_t>(row[3]));
    } else if (const double* number = std::get_if<double>(&row[2])) {
      difference.left = *number;
      difference.right = std::get<double>(row[3]);
    } else {
      continue;
    }
    list.push_back(difference);
  }
  return list;
}

// "+1.25", and nothing below zero that is shown as zero.
std::string signed_text(double value, int decimals) {
  const std::string text = fixed(std::fabs(value), decimals);
  const bool is_zero = text.find_first_not_of("0.") == std::string::npos;
  return is_zero ? text : (value < 0 ? "-" : "+") + text;
}

std::vector<Cell> row_of(const Difference& difference) {
  const bool is_large = std::fabs(difference.left) >= 1000;  // tokens/s
  const auto number = [&](double value) {
    return difference.is_bytes ? gib(std::llround(value))
           : is_large          ? whole(value)
                               : fixed(value, 3);
  };
  const double scale = difference.is_bytes ? 1 / static_cast<double>(std::int64_t{1} << 30) : 1;
  const std::string share =
      difference.left == 0 ? ""
                           : signed_text(100 * difference.change() / difference.left, 1) + " %";
  return {difference.name + (difference.is_bytes ? ", GiB" : ""), number(difference.left),
          number(difference.right),
          signed_text(scale * difference.change(), difference.is_bytes ? 2
                                                   : is_large          ? 0
                                                                       : 3),
          share};
}

// The totals, then of components and parts of the step those that differ most.
Table numbers(const Table& differences, std::size_t most) {
  Table table = {.columns = {"fullest stage", "left", "right", "change", "share"}};
  const auto add = [&](std::string_view kind, std::size_t rows, bool is_sorted) {
    std::vector<Difference> list = differences_of(differences, kind);
    if (is_sorted) {
      std::ranges::stable_sort(list, std::ranges::greater(), [](const Difference& difference) {
        return std::fabs(difference.change());
      });
    }
    for (std::size_t i = 0; i < std::min(rows, list.size()) && table.rows.size() < most; ++i) {
      table.rows.push_back(row_of(list[i]));
    }
  };
  add("worst stage", 4, false);
  add("component", 4, true);
  add("time", 2, false);
  add("part of step", 4, true);
  return table;
}

std::vector<Block> side_blocks(const Screen& screen, const std::string& name, const Side& side) {
  const Prediction& prediction = side.prediction;
  const std::string verdict = verdict_words(prediction);
  const std::string text = prediction.has_numbers()
                               ? memory_words(side.question.job, prediction.memory)
                               : one_line(prediction.reason);
  const std::string line = screen_line(screen, name, verdict + "  " + text, 4);
  const std::size_t at = line.find(verdict);
  std::vector<Block> blocks = {{kMustStand, line.substr(0, at) +
                                                screen.paint(verdict_colour(prediction), verdict) +
                                                line.substr(at + verdict.size())}};
  if (prediction.has_numbers()) {
    blocks.push_back({60, screen_line(screen, " ", speed_words(prediction.time), 2)});
  }
  return blocks;
}

}  // namespace

std::string compare_screen(const Screen& screen, const Side& left, const Side& right,
                           const Table& differences) {
  std::vector<Block> blocks = side_blocks(screen, "left", left);
  for (Block& block : side_blocks(screen, "right", right)) { blocks.push_back(std::move(block)); }
  blocks.push_back({80, screen_line(screen, "differ", choices(differences), 4)});
  const Table all = numbers(differences, kMostRows);
  if (!all.rows.empty()) {
    blocks.push_back({3, "\n"});
    std::int64_t others = 2;  // heading and the last row
    for (const Block& block : blocks) { others += num_rows(block.text); }
    constexpr std::int64_t kFewest = 6;
    const Table shown =
        numbers(differences, static_cast<std::size_t>(std::max(kFewest, kMostRows - others)));
    blocks.push_back(
        {kMustStand,
         screen_table(screen, {.table = shown, .weights = {kMustStand, 60, 60, kMustStand, 50}})});
  }
  blocks.push_back({20, screen_line(screen, "more", "--details: every row that differs", 1)});
  return composed(std::move(blocks));
}

}  // namespace shardplan
