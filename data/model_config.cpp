#include "data/model_config.h"
