#include "estimator/validity.h"
