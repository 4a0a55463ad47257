// A user's own YAML with other values in it: comments, order and whatever is not named stay as they
// are. Only block mappings are edited; who changes a text looks whether it then says so.
#pragma once

#include <string>
#include <vector>

namespace shardplan {

using YamlPath = std::vector<std::string>;  // {"fsdp_config", "offload_params"}

struct YamlChange {
  YamlPath path;
  std::string value = {};   // as YAML writes it: true, 8, "[q_proj, v_proj]"
  std::string behind = {};  // where the key is not there: the key of the same mapping behind which
                            // it stands from now on; else it is the last of its mapping
  bool is_removed = false;
};

// Whether block mappings lead to such a key.
bool has_yaml_key(const std::string& text, const YamlPath& path);

// What stands behind the key on its line, quotes and comment apart; "" where there is no such key.
std::string yaml_value(const std::string& text, const YamlPath& path);

std::string edited_yaml(const std::string& text, const std::vector<YamlChange>& changes);

}  // namespace shardplan
