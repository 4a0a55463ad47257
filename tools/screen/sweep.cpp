#include "tools/screen/sweep.h"

#include <algorithm>
#include <array>

#include "tools/report/sweep.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

// Of long tables the rows around the chosen cluster.
void keep_rows(Table& table, std::size_t chosen, std::size_t most) {
  if (table.rows.size() <= most) {
    return;
  }
  const std::size_t first =
      std::min(chosen > most / 2 ? chosen - most / 2 : 0, table.rows.size() - most);
  table.rows.erase(table.rows.begin() + static_cast<std::ptrdiff_t>(first + most),
                   table.rows.end());
  table.rows.erase(table.rows.begin(), table.rows.begin() + static_cast<std::ptrdiff_t>(first));
}

int weight_of(const std::string& column) {
  constexpr std::array<std::pair<std::string_view, int>, 6> kLight = {{{"interval", 50},
                                                                       {"MFU", 10},
                                                                       {"allocated GiB", 20},
                                                                       {"tokens/s", 30},
                                                                       {"USD/hour", 40},
                                                                       {"nodes", 60}}};
  const auto row = std::ranges::find(kLight, column, &std::pair<std::string_view, int>::first);
  return row == kLight.end() ? kMustStand : row->second;
}

}  // namespace

std::string sweep_screen(const Screen& screen, const SweepReport& report) {
  const auto chosen = choose_cluster(report.points, report.target);
  std::vector<Block> blocks;
  const std::vector<std::string> notes = sweep_notes(report);
  if (!notes.empty() && (report.target.is_given() || chosen)) {
    blocks.push_back({kMustStand, screen_line(screen, "", notes.back(), 2)});
    blocks.push_back({3, "\n"});
  }
  const std::size_t table_at = blocks.size();
  blocks.push_back({kMustStand, ""});
  for (const std::string& note : notes) {
    if (&note != &notes.back() || !chosen) {
      blocks.push_back({40, screen_line(screen, "", note, 2)});
    }
  }
  if (chosen) {
    blocks.push_back({2, "\n"});
    blocks.push_back({kMustStand, command_rows(screen, report.commands[*chosen])});
  }
  std::int64_t others = 2;  // heading, and how many are left out
  for (const Block& block : blocks) { others += num_rows(block.text); }
  ScreenTable table = {.table = sweep_people_table(report), .weights = {}};
  for (const std::string& column : table.table.columns) {
    table.weights.push_back(weight_of(column));
  }
  constexpr std::int64_t kFewest = 5;
  const std::size_t all = table.table.rows.size();
  keep_rows(table.table, chosen.value_or(0),
            static_cast<std::size_t>(std::max(kFewest, kMostRows - others)));
  std::string text = screen_table(screen, table);
  if (table.table.rows.size() < all) {
    text += screen_line(screen, "",
                        "and " + grouped(static_cast<std::int64_t>(all - table.table.rows.size())) +
                            " more clusters: --details");
  }
  blocks[table_at].text = text;
  return composed(std::move(blocks));
}

}  // namespace shardplan
