#include "data/arguments/torchtitan_names.h"

#include <algorithm>
#include <array>

#include "data/read/json_message.h"

namespace shardplan {
namespace {

// What settings of earlier releases are called now, with the same values; a whole section by its
// name with a dot. torchtitan v0.1.0 torchtitan/config_manager.py; names between v0.1 and v0.2 as
// in the configurations of NousResearch/torchtitan and AMD-AIG-AIMA/torchtitan-amd.
struct Renamed {
  std::string_view old_name;
  std::string_view name;
};
constexpr std::array kRenamed = std::to_array<Renamed>({
    {.old_name = "training.batch_size", .name = "training.local_batch_size"},
    {.old_name = "training.compile", .name = "compile.enable"},
    {.old_name = "training.data_parallel_degree", .name = "parallelism.data_parallel_shard_degree"},
    {.old_name = "training.warmup_steps", .name = "lr_scheduler.warmup_steps"},
    {.old_name = "lr_scheduler.lr_min", .name = "lr_scheduler.min_lr_factor"},
    {.old_name = "checkpoint.enable_checkpoint", .name = "checkpoint.enable"},
    {.old_name = "checkpoint.model_weights_only", .name = "checkpoint.last_save_model_only"},
    {.old_name = "checkpoint.last_save_model_weights_only",
     .name = "checkpoint.last_save_model_only"},
    {.old_name = "job.print_args", .name = "job.print_config"},
    {.old_name = "float8.moe_fqns", .name = "quantize.grouped_mm.float8.fqns"},
    {.old_name = "float8.", .name = "quantize.linear.float8."},
    {.old_name = "mx.", .name = "quantize.linear.mx."},
    {.old_name = "training.", .name = "parallelism."},
    {.old_name = "training.", .name = "debug."},
    {.old_name = "experimental.", .name = "parallelism."},
});

// "" where no name of today is known to mean the same.
std::string name_today(const std::string& name, const ArgumentTable& table) {
  if (find_row(table, name) != nullptr) {
    return "";
  }
  for (const Renamed& row : kRenamed) {
    std::string today(row.name);
    if (row.old_name.ends_with('.') && name.starts_with(row.old_name)) {
      today += name.substr(row.old_name.size());
    } else if (name != row.old_name) {
      continue;
    }
    if (find_row(table, today) != nullptr) {
      return today;
    }
  }
  return "";
}

// A setting of today that may be meant, or "".
std::string hint(const std::string& name, const ArgumentTable& table) {
  if (name == "optimizer.fused") {
    return "; its name is now optimizer.implementation";
  }
  const std::string ending = name.substr(std::min(name.rfind('.'), name.size() - 1));
  std::vector<std::string> names;
  std::vector<std::string> moved;  // of this name in another section
  for (const ArgumentRow& row : table.rows) {
    names.push_back(row.name);
    if (row.name.ends_with(ending)) {
      moved.push_back(row.name);
    }
  }
  return moved.size() == 1 ? "; its name is now " + moved.front() : suggestion(name, names);
}

// "training.seq_len" -> "training."
std::string section_of(const std::string& name) {
  return name.substr(0, name.find('.') + 1);
}

bool is_in_a_section(const std::string& name, const ArgumentTable& table) {
  return std::ranges::any_of(
      table.rows, [&](const ArgumentRow& row) { return section_of(row.name) == section_of(name); });
}

}  // namespace

std::vector<Setting> with_names_of_today(const RunSettings& settings, const ArgumentTable& table,
                                         std::vector<std::string>& notes) {
  std::vector<Setting> all = settings.arguments;
  std::string renamed;
  for (Setting& setting : all) {
    const std::string today = name_today(setting.name, table);
    if (!today.empty()) {
      renamed += (renamed.empty() ? "" : ", ") + setting.name + " as " + today;
      setting.name = today;
    }
  }
  if (!renamed.empty()) {
    notes.push_back(settings.file + ": names of another torchtitan, read as those of " +
                    table.version + ": " + renamed);
  }
  return all;
}

// config/manager.py, _dict_to_dataclass: torchtitan does not start with a name it does not know.
// A module of the user's may add names; such a run is refused for the module.
void refuse_unknown_names(const std::string& file, const RunArguments& arguments,
                          const ArgumentTable& table) {
  if (arguments.has("job.custom_config_module") ||
      arguments.has("experimental.custom_args_module")) {
    return;
  }
  if (std::ranges::none_of(arguments.uses(), [&](const SettingUse& use) {
        return is_in_a_section(use.name, table);
      })) {
    throw InputError(file +
                     ": found no setting of torchtitan, expected sections such as [model] and "
                     "[training]");
  }
  std::vector<std::string> unknown;
  for (const SettingUse& use : arguments.uses()) {
    if (use.effect == SettingEffect::kUnknown) {
      unknown.push_back(use.name);
    }
  }
  if (unknown.size() == 1) {
    throw arguments.error(unknown.front(), "found a setting that torchtitan " + table.version +
                                               " does not have, expected one of its own" +
                                               hint(unknown.front(), table));
  }
  if (!unknown.empty()) {
    throw InputError(file + ": found " + std::to_string(unknown.size()) +
                     " settings that torchtitan " + table.version +
                     " does not have, expected its own: " + joined(unknown));
  }
}

}  // namespace shardplan
