#include "estimator/layer_partition.h"
