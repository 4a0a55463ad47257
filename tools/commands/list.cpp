#include "tools/commands/list.h"

#include "data/frameworks/framework.h"
#include "data/read/json_message.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/plan/parameters.h"
#include "tools/commands/command.h"
#include "tools/commands/help.h"
#include "tools/options/question.h"
#include "tools/report/csv.h"
#include "tools/report/json.h"
#include "tools/report/report.h"

namespace shardplan {
namespace {

Table list_models(const Library& library, const std::string&) {
  Table table = {
      .columns = {"name", "family", "layers", "hidden", "parameters", "active_parameters"}};
  for (const std::string& name : library.model_names()) {
    const ModelSpec model = library.model(name).model;
    table.rows.push_back({name, model.family, model.num_layers(), model.hidden,
                          count_parameters(model), count_active_parameters(model)});
  }
  return table;
}

Table list_gpus(const Library& library, const std::string&) {
  Table table = {.columns = {"name", "aliases", "nominal_memory", "device_memory",
                             "bf16_tflops_per_s", "memory_gb_per_s", "source"}};
  for (const std::string& name : library.gpu_names()) {
    const GpuSpec gpu = library.gpu(name);
    std::string aliases;
    for (const std::string& alias : gpu.aliases) {
      aliases += (aliases.empty() ? "" : " ") + alias;
    }
    table.rows.push_back({gpu.id, aliases, gpu.nominal_memory_bytes, gpu.memory_bytes,
                          gpu.bf16_flops_per_s / kTera, gpu.memory_bytes_per_s / kGB, gpu.source});
  }
  return table;
}

Table list_clusters(const Library& library, const std::string&) {
  Table table = {
      .columns = {"name", "gpus", "gpu", "nodes", "nvlink_domain", "network", "usd_per_gpu_hour"}};
  for (const std::string& name : library.cluster_names()) {
    const ClusterSpec cluster = library.cluster(name);
    table.rows.push_back({name, cluster.world_size(), cluster.gpu.id, cluster.nodes,
                          cluster.nvlink_domain, cluster.network,
                          cluster.usd_per_gpu_hour > 0 ? Cell(cluster.usd_per_gpu_hour) : Cell()});
  }
  return table;
}

Table list_frameworks(const Library& library, const std::string&) {
  Table table = {.columns = {"name", "version", "memory_model", "default_zero"}};
  for (const std::string& name : library.framework_names()) {
    const FrameworkProfile profile = library.framework(name);
    table.rows.push_back(
        {name, profile.version, std::string(name_of(profile.memory_model)), profile.default_zero});
  }
  return table;
}

Table list_options(const Library& library, const std::string& framework) {
  library.framework(framework);  // its message knows the names
  const std::string name = library.framework_named(framework);
  Table table = {.columns = {"option", "type", "default", "choices", "meaning", "source"}};
  for (const ProfileOption& option : profile_options(library, name)) {
    std::string choices;
    for (const std::string& choice : option.choices) {
      choices += (choices.empty() ? "" : "|") + choice;
    }
    table.rows.push_back(
        {option.name, option.type, option.default_value, choices, option.meaning, option.source});
  }
  return table;
}

struct Listing {
  std::string_view name;
  std::size_t num_words;  // including the name itself
  Table (*make)(const Library& library, const std::string& argument);
};
constexpr std::array<Listing, 5> kListings = {{
    {.name = "models", .num_words = 1, .make = list_models},
    {.name = "gpus", .num_words = 1, .make = list_gpus},
    {.name = "clusters", .num_words = 1, .make = list_clusters},
    {.name = "frameworks", .num_words = 1, .make = list_frameworks},
    {.name = "options", .num_words = 2, .make = list_options},
}};

const Listing& listing_of(const std::vector<std::string>& words) {
  const std::string expected = "expected models | gpus | clusters | frameworks | options FRAMEWORK";
  if (words.empty()) {
    throw InputError("list: " + expected);
  }
  std::vector<std::string> names;
  for (const Listing& listing : kListings) {
    names.push_back(std::string(listing.name));
    if (listing.name == words.front()) {
      if (listing.num_words != words.size()) {
        throw InputError("list " + words.front() + ": found " + std::to_string(words.size() - 1) +
                         " further words; " + expected);
      }
      return listing;
    }
  }
  throw InputError("list: found '" + words.front() + "', " + expected +
                   suggestion(words.front(), names));
}

std::string render(const Table& table, Format format) {
  switch (format) {
    case Format::kTable: return table_text(table);
    case Format::kCsv: return csv_text(table);
    case Format::kJson: return table_json(table);
  }
  return "";
}

}  // namespace

ExitCode run_list(const Arguments& arguments) {
  const Options options = parse_options("list", arguments);
  if (given(options, "help")) {
    return run_help({"list"});
  }
  const Listing& listing = listing_of(options.positional);
  const Table table = listing.make(library_of(options), options.positional.back());
  Output output(text_or(options, "out", ""));
  output.write(render(table, format_of(options)));
  output.commit();
  return ExitCode::kOk;
}

}  // namespace shardplan
