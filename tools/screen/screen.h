// What an answer that fits one screen is made of: the screen's width and letters, blocks of rows of
// which the least important give way, lines that wrap, commands that paste.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/options/options.h"
#include "tools/report/output.h"
#include "tools/report/table.h"
#include "tools/report/terminal.h"

namespace shardplan {

inline constexpr std::int64_t kMostRows = 24;
inline constexpr std::int64_t kPipedWidth = 100;

struct Screen {
  std::int64_t width = kPipedWidth;
  bool is_unicode = false;  // else letters of ASCII
  Paint paint = {};
};

// Of a terminal its width, within 60 and 200, else kPipedWidth. UTF-8 as the locale has it.
Screen screen_for(const Options& options, const Output& output);

// --details, or an option whose answer no screen holds.
bool asks_details(const Options& options);

// Rows that belong together. The first rows of an answer have the greatest weight.
struct Block {
  int weight = 0;  // where an answer has too many rows, its lightest blocks are left out
  std::string text;
};
constexpr int kMustStand = 100;

// At most kMostRows rows.
std::string composed(std::vector<Block> blocks);

std::int64_t num_rows(const std::string& text);

// "label        text", wrapped at spaces; words longer than a row are cut where the row ends. Of
// more than `most_rows` the last ends in "...".
std::string screen_line(const Screen& screen, std::string_view label, const std::string& text,
                        std::int64_t most_rows = kMostRows);

// Lines that are made for any width, each wrapped; of each at most so many rows.
std::string rewrapped(const Screen& screen, const std::string& text, std::int64_t most_rows);

// As screen_line without a label, behind the verdict in its colour.
std::string verdict_line(const Screen& screen, Colour colour, const std::string& verdict,
                         const std::string& text);

// A shell command over several rows, broken so that the shell joins it again.
std::string command_rows(const Screen& screen, const std::string& command);

// A column of a table and what becomes of it on a narrow screen: columns of the least weight go
// first. The last column is cut at the screen's edge.
struct ScreenTable {
  Table table;
  std::vector<int> weights;  // of the columns; kMustStand: never left out
};
std::string screen_table(const Screen& screen, const ScreenTable& table);

}  // namespace shardplan
