"""The vendor's contributed parts that the field report names."""
